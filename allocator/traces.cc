// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what history and the event rings hear of blocks, mappings,
// evictions and sums, and whether blocks keep the line that asked for them.
#include <algorithm>
#include <utility>

#include "allocator/device_allocator.h"
#include "allocator/events/event_recorder.h"
#include "allocator/state/settings.h"
#include "allocator/state/thread_site.h"

namespace stratalloc {

void DeviceAllocator::ConfigureHistory(const History::Options& options) {
  MutexLock lock(p_.mutex);
  p_.history.Configure(options);
  p_.blocks.NoteHistory();
}

void DeviceAllocator::RecordSites(bool on) {
  MutexLock lock(p_.mutex);
  // Of blocks from before nobody knows.
  for (const auto& [base, segment] : p_.heap.segments()) {
    for (Block* b = segment->first; b != nullptr; b = b->next) {
      b->site = kNoSite;
    }
  }
  p_.slow.Set(SlowReason::kSites, on);
  p_.traces.UseSites(on);
}

void DeviceAllocator::NoteTracker() {
  MutexLock lock(p_.mutex);
  p_.blocks.NoteHistory();
}

std::vector<TraceEvent> DeviceAllocator::Traces() {
  const std::vector<History::Entry> entries = [&] {
    MutexLock lock(p_.mutex);
    return p_.history.Copy();
  }();
  return History::Events(entries);
}

Bytes DeviceAllocator::RecordOutOfMemory(StreamId stream, Bytes bytes,
                                         Charge charge, Bytes free_bytes) {
  const Bytes rounded = Settings::Get().Round(bytes);
  MutexLock lock(p_.mutex);
  if (!p_.history.records()) return rounded;
  TracePoint event;
  event.action = TraceAction::kOutOfMemory;
  event.device = p_.device.index();
  event.address = free_bytes;
  event.bytes = rounded;
  event.stream = stream;
  event.pool = p_.routes.MayRoute() ? p_.captures.RouteOf(stream) : PoolId{};
  event.scope = charge.scope;
  event.category = charge.category;
  if (p_.traces.uses_sites()) event.site = thread_site;
  p_.history.Record(std::move(event), nullptr);
  return rounded;
}

HistoryContext DeviceAllocator::ContextOf(Address address) {
  MutexLock lock(p_.mutex);
  const Block* const block = p_.heap.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) return {};
  return p_.history.BlockContext(address);
}

bool DeviceAllocator::Annotate(Address address, const std::string& label) {
  MutexLock lock(p_.mutex);
  const Block* const block = p_.heap.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) return false;
  p_.traces.Annotate(*block, label);
  return true;
}

void DeviceAllocator::RecordTotals() {
  MutexLock lock(p_.mutex);
  if (!EventRecorder::on()) return;
  TracePoint totals;
  totals.device = p_.device.index();
  totals.address = p_.live.allocated_bytes();
  totals.bytes = static_cast<Bytes>(p_.stats.reserved_bytes.stats[0].current);
  p_.history.RecordTotals(totals);
}

void DeviceAllocator::RecordSnapshot(PoolId pool, Bytes active) {
  MutexLock lock(p_.mutex);
  if (!p_.history.records()) return;
  TracePoint event;
  event.action = TraceAction::kSnapshot;
  event.device = p_.device.index();
  event.bytes = active;
  event.stream = StreamId{0};
  event.pool = pool;
  p_.history.Record(std::move(event), nullptr);
}

}  // namespace stratalloc
