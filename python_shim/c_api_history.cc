// SPDX-License-Identifier: Apache-2.0
// C API: history.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "allocator/history.h"
#include "python_shim/core.h"

namespace stratalloc {
namespace {

std::atomic<void (*)(void*)> release_context{nullptr};
std::atomic<void (*)(const stratalloc_trace_event*)> tracker_of_c{nullptr};

stratalloc_trace_event ToC(const TraceEvent& event) {
  stratalloc_trace_event c{};
  c.action = static_cast<int>(event.action);
  c.device = static_cast<int>(event.device);
  c.address = event.address;
  c.bytes = event.bytes;
  c.stream = Raw(event.stream);
  c.pool_first = event.pool.graph;
  c.pool_second = event.pool.user;
  c.time = event.time;
  c.context = event.context.get();
  c.compile_context = event.compile_context.c_str();
  c.user_metadata = event.user_metadata.c_str();
  return c;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

void stratalloc_history_hooks(int64_t (*clock)(void), void (*release)(void*)) {
  release_context.store(release);
  History::SetClock(clock);
}

void stratalloc_history_configure(const stratalloc_history_options* options) {
  History::Options to;
  to.enabled = options->enabled != 0;
  to.contexts_in_events = options->contexts_in_events != 0;
  to.max_entries = options->max_entries;
  to.clear = options->clear != 0;
  to.skipped = options->skipped;
  Allocator::Get().ConfigureHistory(to);
}

void stratalloc_history_track(void (*tracker)(const stratalloc_trace_event*)) {
  tracker_of_c.store(tracker);
  if (tracker != nullptr) {
    History::SetTracker([](const TraceEvent& event) {
      const stratalloc_trace_event c = ToC(event);
      tracker_of_c.load()(&c);
    });
  } else {
    History::SetTracker(nullptr);
  }
  Allocator::Get().NoteTracker();
}

void stratalloc_history_context(void* context) {
  History::SetThreadContext(
      context == nullptr ? nullptr
                         : HistoryContext(context, release_context.load()));
}

void stratalloc_history_events(int device,
                               void (*event)(void*,
                                             const stratalloc_trace_event*),
                               void* context) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator || *allocator == nullptr) return;
  for (const TraceEvent& each : (*allocator)->Traces()) {
    const stratalloc_trace_event c = ToC(each);
    event(context, &c);
  }
}

uint64_t stratalloc_history_out_of_memory(int device, uint64_t stream,
                                          uint64_t bytes, uint64_t free_bytes) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator || *allocator == nullptr) return bytes;
  return (*allocator)->RecordOutOfMemory(StreamId{stream}, bytes, free_bytes);
}

void stratalloc_history_snapshot(int device, uint64_t pool_first,
                                 uint64_t pool_second, uint64_t active) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (allocator && *allocator != nullptr) {
    (*allocator)->RecordSnapshot(PoolId{pool_first, pool_second}, active);
  }
}

void stratalloc_push_compile_context(const char* text) {
  History::PushCompileContext(text);
}
void stratalloc_pop_compile_context(void) { History::PopCompileContext(); }
void stratalloc_set_user_metadata(const char* text) {
  History::UserMetadata() = text;
}
const char* stratalloc_user_metadata(void) {
  return History::UserMetadata().c_str();
}

}  // extern "C"
