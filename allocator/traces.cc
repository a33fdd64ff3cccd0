// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what history hears of blocks, mappings and evictions.
#include <algorithm>
#include <utility>

#include "allocator/device_allocator.h"
#include "allocator/settings.h"

namespace stratalloc {

void DeviceAllocator::ConfigureHistory(const History::Options& options) {
  MutexLock lock(mutex_);
  history_.Configure(options);
  blocks_.NoteHistory();
}

void DeviceAllocator::NoteTracker() {
  MutexLock lock(mutex_);
  blocks_.NoteHistory();
}

std::vector<TraceEvent> DeviceAllocator::Traces() {
  const std::vector<History::Entry> entries = [&] {
    MutexLock lock(mutex_);
    return history_.Copy();
  }();
  return History::Events(entries);
}

Bytes DeviceAllocator::RecordOutOfMemory(StreamId stream, Bytes bytes,
                                         Bytes free_bytes) {
  const Bytes rounded = Settings::Get().Round(bytes);
  MutexLock lock(mutex_);
  if (!history_.records()) return rounded;
  TracePoint event;
  event.action = TraceAction::kOutOfMemory;
  event.device = device_.index();
  event.address = free_bytes;
  event.bytes = rounded;
  event.stream = stream;
  event.pool = routes_.MayRoute() ? captures_.RouteOf(stream) : PoolId{};
  history_.Record(std::move(event), nullptr, nullptr);
  return rounded;
}

void DeviceAllocator::RecordSnapshot(PoolId pool, Bytes active) {
  MutexLock lock(mutex_);
  if (!history_.records()) return;
  TracePoint event;
  event.action = TraceAction::kSnapshot;
  event.device = device_.index();
  event.bytes = active;
  event.stream = StreamId{0};
  event.pool = pool;
  history_.Record(std::move(event), nullptr, nullptr);
}

}  // namespace stratalloc
