// SPDX-License-Identifier: Apache-2.0
#include "allocator/history.h"

#include <atomic>
#include <utility>

namespace stratalloc {
namespace {

std::atomic<History::Clock> clock_of_events{nullptr};
std::atomic<History::Tracker> tracker_of_events{nullptr};

struct ThreadLabels {
  HistoryContext context;
  std::vector<std::string> compile_contexts;
  std::string user_metadata;
};
ThreadLabels& ThreadsLabels() {
  thread_local ThreadLabels labels;
  return labels;
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
  ThreadsLabels().context = std::move(context);
}
const HistoryContext& History::ThreadContext() {
  return ThreadsLabels().context;
}
void History::PushCompileContext(std::string text) {
  ThreadsLabels().compile_contexts.push_back(std::move(text));
}
void History::PopCompileContext() {
  std::vector<std::string>& contexts = ThreadsLabels().compile_contexts;
  if (!contexts.empty()) contexts.pop_back();
}
std::string& History::UserMetadata() { return ThreadsLabels().user_metadata; }

void History::Configure(const Options& options) {
  options_ = options;
  ring_.SetCapacity(options.max_entries);
  if (!options.enabled || options.clear) ring_.Clear();
}

bool History::attentive() const {
  return records() || !blocks_.empty();  // contexts end with their blocks
}

bool History::records() const {
  return options_.enabled ||
         tracker_of_events.load(std::memory_order_relaxed) != nullptr;
}

void History::Record(const TracePoint& point, const HistoryContext& fallback,
                     const char* label, std::optional<TraceAction> then) {
  const Clock clock = clock_of_events.load(std::memory_order_relaxed);
  Entry entry{point, LabelsOfThread(), label};
  entry.time = clock != nullptr ? clock() : 0;
  if (options_.contexts_in_events) {
    const HistoryContext& context = ThreadContext();
    entry.context = context != nullptr ? context : fallback;
  }
  Add(entry, point.action);
  if (then.has_value()) Add(entry, *then);
}

void History::Add(const Entry& entry, TraceAction action) {
  if (const Tracker tracker = tracker_of_events.load();
      __builtin_expect(tracker != nullptr, 0)) {
    TraceEvent event = ToEvent(entry);
    event.action = action;
    tracker(event);
  }
  const bool skipped = (options_.skipped >> static_cast<int>(action) & 1) != 0;
  if (!options_.enabled || skipped) return;
  // Field by field into the ring: counted pointers are rarely there, neither
  // before nor after, and then they cost a comparison.
  Entry& place = ring_.Next();
  place.action = action;
  place.device = entry.device;
  place.address = entry.address;
  place.bytes = entry.bytes;
  place.stream = entry.stream;
  place.pool = entry.pool;
  place.time = entry.time;
  place.label = entry.label;
  if (place.context != entry.context) place.context = entry.context;
  if (place.labels != entry.labels) place.labels = entry.labels;
}

std::shared_ptr<const History::Labels> History::LabelsOfThread() {
  const ThreadLabels& labels = ThreadsLabels();
  if (labels.compile_contexts.empty() && labels.user_metadata.empty()) {
    return nullptr;
  }
  return std::make_shared<const Labels>(Labels{
      labels.compile_contexts.empty() ? "N/A" : labels.compile_contexts.back(),
      labels.user_metadata});
}

TraceEvent History::ToEvent(const Entry& entry) {
  TraceEvent event{entry, "N/A", ""};
  if (entry.labels != nullptr) {
    event.compile_context = entry.labels->compile_context;
    event.user_metadata = entry.labels->user_metadata;
  }
  if (entry.label != nullptr) event.user_metadata = entry.label;
  return event;
}

std::vector<History::Entry> History::Copy() const { return ring_.InOrder(); }

std::vector<TraceEvent> History::Events(const std::vector<Entry>& entries) {
  std::vector<TraceEvent> events;
  events.reserve(entries.size());
  for (const Entry& entry : entries) events.push_back(ToEvent(entry));
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
HistoryContext History::SegmentContext(Address base) const {
  return Find(segments_, base);
}

}  // namespace stratalloc
