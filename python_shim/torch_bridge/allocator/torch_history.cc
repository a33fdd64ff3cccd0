// SPDX-License-Identifier: Apache-2.0
// TorchAllocator: history, snapshots, observers, trackers, labels.
#include "python_shim/torch_bridge/allocator/torch_history.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/ApproximateClock.h>

#include <memory>
#include <utility>

#include "allocator/base/mutex.h"
#include "allocator/base/ring.h"
#include "python_shim/bridge_api/history.h"
#include "python_shim/bridge_api/setup.h"
#include "python_shim/bridge_api/sites.h"
#include "python_shim/torch_bridge/allocator/stats_convert.h"
#include "python_shim/torch_bridge/allocator/torch_allocator.h"
#include "python_shim/torch_bridge/autograd/backward_scopes.h"
#include "python_shim/torch_bridge/base/conversions.h"
#include "python_shim/torch_bridge/collectives/collectives_under_way.h"

namespace stratalloc {

using c10::CachingDeviceAllocator::AnnotationEntry;
using c10::CachingDeviceAllocator::CreateContextFn;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;
using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;

std::atomic<std::uint32_t> gathering{0};

namespace {

std::atomic<CreateContextFn> context_recorder{nullptr};

int64_t Clock() { return static_cast<int64_t>(c10::getApproximateTime()); }

struct State {
  Mutex mutex{LockRank::kRegistry};
  std::atomic<bool> enabled{false};
  HistoryOptions options GUARDED_BY(mutex);
  Ring<AnnotationEntry> annotations GUARDED_BY(mutex);
  c10::ApproximateClockToUnixTimeConverter clock;
  // Read under the device lock, where this mutex may not be taken: a list is
  // replaced, never changed, and an old one stays (attaching is rare).
  std::atomic<const std::vector<AllocatorTraceTracker>*> trackers{nullptr};
};
State& History() {
  static State* const state = [] {
    core::SetHistoryClock(&Clock);
    return new State;  // never destroyed: frees come late
  }();
  return *state;
}

TraceEntry ToEntry(const TraceEvent& event) {
  TraceEntry entry(
      static_cast<TraceEntry::Action>(event.action),
      static_cast<c10::DeviceIndex>(event.device), event.address, event.bytes,
      ToStream(event.stream), {event.pool.graph, event.pool.user},
      static_cast<c10::approx_time_t>(event.time), ToContext(event.context),
      event.compile_context, event.user_metadata);
#if TORCH_MINOR >= 15
  entry.internal_metadata_ = event.internal_metadata;
#endif
  return entry;
}

static_assert(static_cast<int>(RecordContext::NEVER) == 0 &&
              static_cast<int>(RecordContext::ALL) == 3);
// The mutex of the state is held: nobody else writes these bits.
void GatherContexts(RecordContext when) {
  gathering.fetch_and(~Gathering::kContexts);
  gathering.fetch_or(static_cast<std::uint32_t>(when));
}

void Track(const TraceEvent& event) {
  const auto* trackers = History().trackers.load(std::memory_order_acquire);
  if (trackers == nullptr) return;
  const TraceEntry entry = ToEntry(event);
  for (const AllocatorTraceTracker& tracker : *trackers) tracker(entry);
}

}  // namespace

void ApplyHistory() {
  State& state = History();
  MutexLock lock(state.mutex);
  ApplyTelemetry();
  if (state.options.enabled) core::ConfigureHistory(state.options);
  if (state.trackers.load() != nullptr) core::TrackHistory(&Track);
}

void ApplyTelemetry() {
  if (core::RecordsSites()) {
    gathering.fetch_or(Gathering::kSites);
  } else {
    gathering.fetch_and(~Gathering::kSites);
  }
}

void ContextOfFree::Gather() {
  const CreateContextFn recorder = context_recorder.load();
  if (recorder == nullptr) return;
  core::SetHistoryContext(recorder());
}

void ContextOfFree::Drop() { core::SetHistoryContext(nullptr); }

void ContextOfMalloc::Gather(std::size_t size) {
  if ((gathered_ & Gathering::kContexts) != 0) {
    if (const CreateContextFn recorder = context_recorder.load()) {
      core::SetHistoryContext(recorder());
    }
  }
  if ((gathered_ & Gathering::kSites) != 0) {
    SiteId site = kNoSite;
    if (core::SampleMalloc(size)) {
      const BetweenNodes between;  // or nobody knows whose backward it is
      site = core::FindSite();
    }
    site_before_ = core::ExchangeSite(site);
  }
}

void ContextOfMalloc::Drop() {
  if ((gathered_ & Gathering::kContexts) != 0) {
    core::SetHistoryContext(nullptr);
  }
  if ((gathered_ & Gathering::kSites) != 0) core::ExchangeSite(site_before_);
}

bool TorchAllocator::isHistoryEnabled() { return History().enabled.load(); }

void TorchAllocator::recordHistory(
    bool enabled, CreateContextFn recorder, size_t max_entries,
    RecordContext when, bool clear_history,
    const std::vector<std::string>& skip_actions) {
  TORCH_CHECK(when == RecordContext::NEVER || recorder,
              "recordHistory: contexts need a function that gathers them");
  HistoryOptions options;
  for (const std::string& action : skip_actions) {
    options.skipped |=
        1u << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
  }
  options.enabled = enabled;
  options.contexts_in_events = enabled && when >= RecordContext::ALLOC;
  options.max_entries = max_entries;
  options.clear = clear_history;

  State& state = History();
  MutexLock lock(state.mutex);
  state.options = options;
  state.annotations.SetCapacity(max_entries);
  if (!enabled || clear_history) state.annotations.Clear();
  // The recorder before the level that uses it, and the other way round.
  if (enabled) context_recorder.store(recorder);
  GatherContexts(enabled ? when : RecordContext::NEVER);
  core::ConfigureHistory(options);
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
    core::PushCompileContext(context);
  }
}

void TorchAllocator::popCompileContext() {
  if (History().enabled.load(std::memory_order_relaxed)) {
    core::PopCompileContext();
  }
}

void TorchAllocator::setUserMetadata(const std::string& metadata) {
  core::UserMetadata() = metadata;
}

std::string TorchAllocator::getUserMetadata() { return core::UserMetadata(); }

#if TORCH_MINOR >= 12
std::shared_ptr<c10::GatheredContext> TorchAllocator::getContextForPointer(
    const void* ptr) {
  return ToContext(core::ContextOf(ToAddress(ptr)));
}
#endif

#if TORCH_MINOR >= 14
bool TorchAllocator::supportsUserMetadata() { return true; }

void TorchAllocator::annotateMemory(const void* ptr,
                                    const std::string& metadata) {
  // As native gathers of what is not a malloc.
  const auto level = static_cast<RecordContext>(
      gathering.load(std::memory_order_relaxed) & Gathering::kContexts);
  const CreateContextFn recorder = context_recorder.load();
  const bool gathers = level >= RecordContext::ALLOC && recorder != nullptr;
  if (gathers) core::SetHistoryContext(recorder());
  const bool found = core::Annotate(ToAddress(ptr), metadata);
  if (gathers) core::SetHistoryContext(nullptr);
  TORCH_CHECK(found, "annotateMemory: no live allocation found at pointer ",
              ptr);
}
#endif

void TorchAllocator::attachOutOfMemoryObserver(
    c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) {
  out_of_memory_.Attach(std::move(observer));
}

#if TORCH_MINOR >= 12
void TorchAllocator::attachOomRejectionObserver(
    c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) {
  out_of_memory_.AttachToRejections(std::move(observer));
}
#endif

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
  core::TrackHistory(&Track);
}

TorchAllocator::SnapshotInfo TorchAllocator::snapshot(MempoolId pool,
                                                      bool include_traces) {
  CollectivesUnderWay::Bury();
  State& state = History();
  SnapshotInfo result;
  result.config_metadata = CurrentConfigInfo();
  const int devices = core::IsInitialized() ? core::DeviceCount() : 0;
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
      for (const TraceEvent& event : core::HistoryEvents(device)) {
        TraceEntry& entry = trace.emplace_back(ToEntry(event));
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
    core::RecordSnapshot(device, ToPoolId(pool),
                         active[static_cast<size_t>(device)]);
  }
  return result;
}

}  // namespace stratalloc
