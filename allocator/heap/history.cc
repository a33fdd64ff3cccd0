// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/history.h"

#include <atomic>
#include <utility>
#include <vector>

#include "allocator/base/thread_local.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {
namespace {

std::atomic<History::Clock> clock_of_events{nullptr};
std::atomic<History::Tracker> tracker_of_events{nullptr};

struct ThreadLabels {
  HistoryContext context;
  std::vector<std::string> compile_contexts;
  std::string user_metadata, internal_metadata;
};
// Made by what first sets one of them: most threads never do, and then what
// every event asks is one comparison.
STRATALLOC_FAST_THREAD_LOCAL ThreadLabels* thread_labels = nullptr;

ThreadLabels& LabelsToSet() {
  if (thread_labels == nullptr) {
    static ThreadEnd& end = *new ThreadEnd([](void* mine) {
      thread_labels = nullptr;
      delete static_cast<ThreadLabels*>(mine);
    });
    thread_labels = new ThreadLabels;
    end.Await(thread_labels);
  }
  return *thread_labels;
}

// Of those that the event rings have: all but kAnnotate.
constexpr EventKind KindOf(TraceAction action) {
  static_assert(static_cast<int>(TraceAction::kOutOfMemory) ==
                static_cast<int>(EventKind::kOutOfMemory));
  return static_cast<EventKind>(action);
}

template <typename Map>
HistoryContext Find(const Map& map, Address address) {
  if (map.empty()) return nullptr;
  auto found = map.find(address);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

void History::SetClock(Clock clock) { clock_of_events.store(clock); }
void History::SetTracker(Tracker tracker) { tracker_of_events.store(tracker); }

void History::SetThreadContext(HistoryContext context) {
  LabelsToSet().context = std::move(context);
}
const HistoryContext& History::ThreadContext() {
  static const auto& none = *new HistoryContext;
  return thread_labels != nullptr ? thread_labels->context : none;
}
void History::PushCompileContext(std::string text) {
  LabelsToSet().compile_contexts.push_back(std::move(text));
}
void History::PopCompileContext() {
  if (thread_labels == nullptr) return;
  std::vector<std::string>& contexts = thread_labels->compile_contexts;
  if (!contexts.empty()) contexts.pop_back();
}
std::string& History::UserMetadata() { return LabelsToSet().user_metadata; }
std::string& History::InternalMetadata() {
  return LabelsToSet().internal_metadata;
}

void History::Configure(const Options& options) {
  options_ = options;
  ring_.SetCapacity(options.max_entries);
  if (!options.enabled || options.clear) ring_.Clear();
}

bool History::attentive() const {
  return records() || !blocks_.empty();  // contexts end with their blocks
}

bool History::ForTorch() const {
  return options_.enabled ||
         tracker_of_events.load(std::memory_order_relaxed) != nullptr;
}

bool History::records() const { return EventRecorder::on() || ForTorch(); }

void History::RecordInRings(const TracePoint& point, EventKind kind) {
  Event event;
  event.kind = kind;
  event.address = point.address;
  event.bytes = point.bytes;
  event.aux = OrderAndPool(++order_, point.pool_number);
  event.scope = Raw(point.scope);
  event.site = static_cast<std::uint16_t>(Raw(point.site));
  if (point.size != 0) SetSize(event, point.size);
  event.category = Raw(point.category);
  event.device = static_cast<std::uint8_t>(point.device);
  switch (point.cause) {
    case TraceCause::kNone:
      if (point.in_frame && kind == EventKind::kAlloc) {
        event.flags = kEventInFrame;
      }
      break;
    case TraceCause::kEvicted:
      event.flags = kEventEvicted;
      break;
    case TraceCause::kRestored:
      event.flags = kEventRestored;
      break;
  }
  EventRecorder::Record(event);
}

void History::Record(TracePoint&& point, const HistoryContext& fallback,
                     std::optional<TraceAction> then) {
  if (EventRecorder::on()) {
    RecordInRings(point, KindOf(point.action));
    if (then.has_value()) RecordInRings(point, KindOf(*then));
  }
  if (!ForTorch()) return;
  Complete(point, fallback);
  const LabelsOfEvent labels = LabelsOfThread();
  Add(point, labels);
  if (!then.has_value()) return;
  point.action = *then;
  Add(point, labels);
}

void History::Annotate(TracePoint&& point, const std::string& label) {
  if (!ForTorch()) return;
  Complete(point, nullptr);
  Add(point, LabelsOfThread(&label));
}

void History::Complete(TracePoint& point,
                       const HistoryContext& fallback) const {
  const Clock clock = clock_of_events.load(std::memory_order_relaxed);
  point.time = clock != nullptr ? clock() : 0;
  if (!options_.contexts_in_events) return;
  const HistoryContext& context = ThreadContext();
  point.context = context != nullptr ? context : fallback;
}

void History::Add(const TracePoint& point, const LabelsOfEvent& labels) {
  if (const Tracker tracker = tracker_of_events.load();
      __builtin_expect(tracker != nullptr, 0)) {
    tracker(ToEvent(point, labels.get()));
  }
  const bool skipped =
      (options_.skipped >> static_cast<int>(point.action) & 1) != 0;
  if (!options_.enabled || skipped) return;
  // Field by field into the ring: counted pointers are rarely there, neither
  // before nor after, and then they cost a comparison.
  Entry& place = ring_.Next();
  place.action = point.action;
  place.device = point.device;
  place.address = point.address;
  place.bytes = point.bytes;
  place.stream = point.stream;
  place.pool = point.pool;
  place.time = point.time;
  place.cause = point.cause;
  if (place.context != point.context) place.context = point.context;
  if (place.labels != labels) place.labels = labels;
}

History::LabelsOfEvent History::LabelsOfThread(const std::string* label) {
  if (label == nullptr && thread_labels == nullptr) return nullptr;
  static const auto& none = *new ThreadLabels;
  const ThreadLabels& labels = thread_labels == nullptr ? none : *thread_labels;
  if (label == nullptr && labels.compile_contexts.empty() &&
      labels.user_metadata.empty() && labels.internal_metadata.empty()) {
    return nullptr;
  }
  return std::make_shared<const Labels>(Labels{
      labels.compile_contexts.empty() ? "N/A" : labels.compile_contexts.back(),
      label == nullptr ? labels.user_metadata : *label,
      labels.internal_metadata});
}

TraceEvent History::ToEvent(const TracePoint& point, const Labels* labels) {
  TraceEvent event{point, "N/A", "", ""};
  if (labels != nullptr) {
    event.compile_context = labels->compile_context;
    event.user_metadata = labels->user_metadata;
    event.internal_metadata = labels->internal_metadata;
  }
  if (point.cause != TraceCause::kNone) {
    event.user_metadata =
        point.cause == TraceCause::kEvicted ? "evicted" : "restored";
  }
  return event;
}

std::vector<History::Entry> History::Copy() const { return ring_.InOrder(); }

std::vector<TraceEvent> History::Events(const std::vector<Entry>& entries) {
  std::vector<TraceEvent> events;
  events.reserve(entries.size());
  for (const Entry& entry : entries) {
    events.push_back(ToEvent(entry, entry.labels.get()));
  }
  return events;
}

void History::RememberBlock(Address address) {
  if (const HistoryContext& context = ThreadContext()) {
    blocks_[address] = context;
  }
}
HistoryContext History::BlockContext(Address address) const {
  return Find(blocks_, address);
}
void History::RememberSegment(Address base) {
  if (const HistoryContext& context = ThreadContext()) {
    segments_.emplace(base, context);  // the first mapping's
  }
}
void History::CutSegment(Address base, Address at) {
  if (HistoryContext context = SegmentContext(base)) {
    segments_[at] = std::move(context);
  }
}
void History::JoinSegments(Address left, Address right) {
  const auto gone = segments_.find(right);
  if (gone == segments_.end()) return;
  segments_.emplace(left, gone->second);
  segments_.erase(right);
}
HistoryContext History::SegmentContext(Address base) const {
  return Find(segments_, base);
}

}  // namespace stratalloc
