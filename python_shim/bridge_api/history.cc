// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/history.h"

#include <utility>

#include "allocator/heap/history.h"
#include "python_shim/core/core.h"

namespace stratalloc::core {
namespace {

// nullptr for a device that is not opened, or that there is not.
DeviceAllocator* OpenedOrNone(int device) {
  return Core::Get().Opened(device).value_or(nullptr);
}

}  // namespace

void SetHistoryClock(std::int64_t (*clock)()) { History::SetClock(clock); }

void ConfigureHistory(const HistoryOptions& options) {
  Allocator::Get().ConfigureHistory(options);
}

void TrackHistory(void (*tracker)(const TraceEvent&)) {
  History::SetTracker(tracker);
  Allocator::Get().NoteTracker();
}

void SetHistoryContext(HistoryContext context) {
  History::SetThreadContext(std::move(context));
}

std::vector<TraceEvent> HistoryEvents(int device) {
  DeviceAllocator* const allocator = OpenedOrNone(device);
  if (allocator == nullptr) return {};
  return allocator->Traces();
}

HistoryContext ContextOf(Address address) {
  DeviceAllocator* const allocator = Core::Get().OwnerOf(address);
  return allocator == nullptr ? nullptr : allocator->ContextOf(address);
}

bool Annotate(Address address, const std::string& label) {
  DeviceAllocator* const allocator = Core::Get().OwnerOf(address);
  return allocator != nullptr && allocator->Annotate(address, label);
}

void RecordSnapshot(int device, PoolId pool, Bytes active) {
  DeviceAllocator* const allocator = OpenedOrNone(device);
  if (allocator != nullptr) allocator->RecordSnapshot(pool, active);
}

void PushCompileContext(std::string text) {
  History::PushCompileContext(std::move(text));
}
void PopCompileContext() { History::PopCompileContext(); }
std::string& UserMetadata() { return History::UserMetadata(); }

}  // namespace stratalloc::core
