// SPDX-License-Identifier: Apache-2.0
// TorchAllocator: history, snapshots, observers, trackers, labels.
#include "python_shim/torch_bridge/torch_history.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/ApproximateClock.h>

#include <memory>
#include <utility>

#include "allocator/base/mutex.h"
#include "allocator/base/ring.h"
#include "python_shim/c_api.h"
#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/collectives_under_way.h"
#include "python_shim/torch_bridge/stats_convert.h"
#include "python_shim/torch_bridge/torch_allocator.h"

namespace stratalloc {

using c10::CachingDeviceAllocator::AnnotationEntry;
using c10::CachingDeviceAllocator::CreateContextFn;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;
using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;

std::atomic<RecordContext> recorded_contexts{RecordContext::NEVER};

namespace {

// What the core holds: one reference, let go by ReleaseContext.
using Context = std::shared_ptr<c10::GatheredContext>;

std::atomic<CreateContextFn> context_recorder{nullptr};

void ReleaseContext(void* context) { delete static_cast<Context*>(context); }
int64_t Clock() { return static_cast<int64_t>(c10::getApproximateTime()); }

struct State {
  Mutex mutex{LockRank::kRegistry};
  std::atomic<bool> enabled{false};
  stratalloc_history_options options GUARDED_BY(mutex){};
  Ring<AnnotationEntry> annotations GUARDED_BY(mutex);
  c10::ApproximateClockToUnixTimeConverter clock;
  // Read under the device lock, where this mutex may not be taken: a list is
  // replaced, never changed, and an old one stays (attaching is rare).
  std::atomic<const std::vector<AllocatorTraceTracker>*> trackers{nullptr};
};
State& History() {
  static State* const state = [] {
    stratalloc_history_hooks(&Clock, &ReleaseContext);
    return new State;  // never destroyed: frees come late
  }();
  return *state;
}

TraceEntry ToEntry(const stratalloc_trace_event& event) {
  return TraceEntry(static_cast<TraceEntry::Action>(event.action),
                    static_cast<c10::DeviceIndex>(event.device), event.address,
                    event.bytes, reinterpret_cast<void*>(event.stream),
                    {event.pool_first, event.pool_second},
                    static_cast<c10::approx_time_t>(event.time),
                    event.context != nullptr
                        ? *static_cast<Context*>(event.context)
                        : nullptr,
                    event.compile_context, event.user_metadata);
}

void Track(const stratalloc_trace_event* event) {
  const auto* trackers = History().trackers.load(std::memory_order_acquire);
  if (trackers == nullptr) return;
  const TraceEntry entry = ToEntry(*event);
  for (const AllocatorTraceTracker& tracker : *trackers) tracker(entry);
}

void AddEntry(void* to, const stratalloc_trace_event* event) {
  static_cast<std::vector<TraceEntry>*>(to)->push_back(ToEntry(*event));
}

}  // namespace

void ApplyHistory() {
  State& state = History();
  MutexLock lock(state.mutex);
  if (state.options.enabled) stratalloc_history_configure(&state.options);
  if (state.trackers.load() != nullptr) stratalloc_history_track(&Track);
}

void ContextOfCall::Gather() {
  const CreateContextFn recorder = context_recorder.load();
  if (recorder == nullptr) return;
  Context context = recorder();
  if (context != nullptr) {
    stratalloc_history_context(new Context(std::move(context)));
  }
}

void ContextOfCall::Drop() { stratalloc_history_context(nullptr); }

bool TorchAllocator::isHistoryEnabled() { return History().enabled.load(); }

void TorchAllocator::recordHistory(
    bool enabled, CreateContextFn recorder, size_t max_entries,
    RecordContext when, bool clear_history,
    const std::vector<std::string>& skip_actions) {
  TORCH_CHECK(when == RecordContext::NEVER || recorder,
              "recordHistory: contexts need a function that gathers them");
  stratalloc_history_options options{};
  for (const std::string& action : skip_actions) {
    options.skipped |=
        1u << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
  }
  options.enabled = enabled ? 1 : 0;
  options.contexts_in_events = enabled && when >= RecordContext::ALLOC ? 1 : 0;
  options.max_entries = max_entries;
  options.clear = clear_history ? 1 : 0;

  State& state = History();
  MutexLock lock(state.mutex);
  state.options = options;
  state.annotations.SetCapacity(max_entries);
  if (!enabled || clear_history) state.annotations.Clear();
  // The recorder before the level that uses it, and the other way round.
  if (enabled) context_recorder.store(recorder);
  recorded_contexts.store(enabled ? when : RecordContext::NEVER);
  stratalloc_history_configure(&options);
  state.enabled.store(enabled);
}

void TorchAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& annotation) {
  State& state = History();
  if (!state.enabled.load(std::memory_order_relaxed)) return;
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto& [key, value] : annotation) {
    entry.recordUserMetadata(key, value);
  }
  MutexLock lock(state.mutex);
  state.annotations.Add(std::move(entry));
}

void TorchAllocator::pushCompileContext(std::string& context) {
  if (History().enabled.load(std::memory_order_relaxed)) {
    stratalloc_push_compile_context(context.c_str());
  }
}

void TorchAllocator::popCompileContext() {
  if (History().enabled.load(std::memory_order_relaxed)) {
    stratalloc_pop_compile_context();
  }
}

void TorchAllocator::setUserMetadata(const std::string& metadata) {
  stratalloc_set_user_metadata(metadata.c_str());
}

std::string TorchAllocator::getUserMetadata() {
  return stratalloc_user_metadata();
}

void TorchAllocator::attachOutOfMemoryObserver(
    c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) {
  out_of_memory_.Attach(std::move(observer));
}

void TorchAllocator::attachAllocatorTraceTracker(
    AllocatorTraceTracker tracker) {
  State& state = History();
  MutexLock lock(state.mutex);
  const auto* before = state.trackers.load();
  auto* after = before == nullptr
                    ? new std::vector<AllocatorTraceTracker>
                    : new std::vector<AllocatorTraceTracker>(*before);
  after->push_back(std::move(tracker));
  state.trackers.store(after, std::memory_order_release);
  stratalloc_history_track(&Track);
}

TorchAllocator::SnapshotInfo TorchAllocator::snapshot(MempoolId pool,
                                                      bool include_traces) {
  CollectivesUnderWay::Bury();
  State& state = History();
  SnapshotInfo result;
  result.config_metadata = CurrentConfigInfo();
  const int devices =
      stratalloc_initialized() != 0 ? stratalloc_device_count() : 0;
  if (include_traces) {
    const auto to_ns = state.clock.makeConverter();
    {
      MutexLock lock(state.mutex);
      result.external_annotations = state.annotations.InOrder();
    }
    for (AnnotationEntry& entry : result.external_annotations) {
      entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    }
    // Viewers expect one list of events per device.
    result.device_traces.resize(static_cast<size_t>(devices));
    for (int device = 0; device < devices; ++device) {
      auto& trace = result.device_traces[static_cast<size_t>(device)];
      stratalloc_history_events(device, &AddEntry, &trace);
      for (TraceEntry& entry : trace) {
        entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
      }
    }
  }
  result.segments = CollectSegments(pool);
  std::vector<uint64_t> active(static_cast<size_t>(devices));
  for (const SegmentInfo& segment : result.segments) {
    active[static_cast<size_t>(segment.device)] += segment.active_size;
  }
  for (int device = 0; device < devices; ++device) {
    stratalloc_history_snapshot(device, pool.first, pool.second,
                                active[static_cast<size_t>(device)]);
  }
  return result;
}

}  // namespace stratalloc
