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
ThreadLabels& Labels() {
  thread_local ThreadLabels labels;
  return labels;
}

template <typename Map>
HistoryContext Find(const Map& map, Address address) {
  auto found = map.find(address);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

void History::SetClock(Clock clock) { clock_of_events.store(clock); }
void History::SetTracker(Tracker tracker) { tracker_of_events.store(tracker); }

void History::SetThreadContext(HistoryContext context) {
  Labels().context = std::move(context);
}
const HistoryContext& History::ThreadContext() { return Labels().context; }
void History::PushCompileContext(std::string text) {
  Labels().compile_contexts.push_back(std::move(text));
}
void History::PopCompileContext() {
  if (!Labels().compile_contexts.empty()) Labels().compile_contexts.pop_back();
}
std::string& History::UserMetadata() { return Labels().user_metadata; }

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

void History::Record(TraceEvent event, const HistoryContext& fallback,
                     const char* label) {
  const ThreadLabels& labels = Labels();
  const Clock clock = clock_of_events.load(std::memory_order_relaxed);
  event.time = clock != nullptr ? clock() : 0;
  if (options_.contexts_in_events) {
    event.context = labels.context != nullptr ? labels.context : fallback;
  }
  event.compile_context =
      labels.compile_contexts.empty() ? "N/A" : labels.compile_contexts.back();
  event.user_metadata = label != nullptr ? label : labels.user_metadata;
  if (const Tracker tracker = tracker_of_events.load()) tracker(event);
  const bool skipped =
      (options_.skipped >> static_cast<int>(event.action) & 1) != 0;
  if (options_.enabled && !skipped) ring_.Add(std::move(event));
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
