// SPDX-License-Identifier: Apache-2.0
// What happened to the memory of one device: a ring of events, and where each
// living block and each segment was asked for.
//
// An event says what a block or a mapped range became, as torch's viewers
// read it: requested sizes for blocks, real sizes for segments. Replayed from
// an empty device, the events of a full history give the snapshot: a block of
// which a handle is evicted is freed, and what stays of it is allocated again
// (cause "evicted"), the other way round on a restore ("restored").
//
// There are two sinks for one vocabulary: torch's history, which is this
// class's ring and one device's, and the event rings of threads
// (allocator/events), which hear of everything. Either may be on alone.
//
// The context of the running call (a stack of frames, the bridge's) belongs
// to the thread: it is gathered before any lock is taken, since that may need
// Python's GIL, and set with SetThreadContext around the call. Compile
// contexts and the user's label belong to the thread too.
//
// Device lock for every method that is not static; the tracker is called under
// it. Contexts may be let go under it: that must neither wait nor take the GIL.
// Nothing here can fail. Lifetime: the device's.
#ifndef STRATALLOC_ALLOCATOR_HEAP_HISTORY_H_
#define STRATALLOC_ALLOCATOR_HEAP_HISTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ring.h"
#include "allocator/events/event.h"
#include "allocator/values/trace_event.h"

namespace stratalloc {

class History {
 public:
  struct Labels {
    std::string compile_context, user_metadata, internal_metadata;
  };
  // An event as the ring has it: labels are rare, and two strings in each were
  // most of what an event cost.
  struct Entry : TracePoint {
    std::shared_ptr<const Labels> labels;  // nullptr: the thread had none
  };
  using Options = HistoryOptions;
  using Clock = std::int64_t (*)();
  using Tracker = void (*)(const TraceEvent&);

  // For the whole process; nullptr for none. Set the clock first.
  static void SetClock(Clock clock);
  static void SetTracker(Tracker tracker);

  // The thread's; see above.
  static void SetThreadContext(HistoryContext context);
  static const HistoryContext& ThreadContext();
  static void PushCompileContext(std::string text);
  static void PopCompileContext();
  static std::string& UserMetadata();
  // On every event of the thread while it is not "".
  static std::string& InternalMetadata();

  void Configure(const Options& options);
  // Must every allocation and free be seen?
  bool attentive() const;
  bool records() const;  // events, that is
  // The number of the device's newest event in the event rings.
  std::uint64_t order() const { return order_; }
  // Completes it by time, context and labels; a cause stands in place of the
  // user's label. `fallback`: the context if the thread has none. `then`:
  // another event like it, in the same moment.
  void Record(TracePoint&& point, const HistoryContext& fallback,
              std::optional<TraceAction> then = {});
  // A label for a block that lives; nothing of the block changes. Of torch's
  // history alone: in the event rings a block has no labels.
  void Annotate(TracePoint&& point, const std::string& label);
  // Somebody else owns the block from now on: for the event rings alone, torch
  // has no such action. REQUIRES: EventRecorder::on().
  void RecordRelabel(const TracePoint& point) {
    RecordInRings(point, EventKind::kRelabel);
  }
  // The block ended, and its beginning is away: no event of torch's says so.
  // REQUIRES: EventRecorder::on().
  void RecordFreedAway(const TracePoint& point) {
    RecordInRings(point, EventKind::kFreedAway);
  }
  // The frame whose number is `address` ended, and some of its blocks live.
  // REQUIRES: EventRecorder::on().
  void RecordFrameEnd(const TracePoint& point) {
    RecordInRings(point, EventKind::kFrameEnd);
  }
  // What the device has, in its place among its events: `address` allocated,
  // `bytes` reserved. REQUIRES: EventRecorder::on().
  void RecordTotals(const TracePoint& point) {
    RecordInRings(point, EventKind::kTotals);
  }
  // Oldest first. Under the lock a copy without strings, which every malloc
  // waits for; what torch is told is made of it without the lock.
  std::vector<Entry> Copy() const;
  static std::vector<TraceEvent> Events(const std::vector<Entry>& entries);

  // Where the block or segment at `address` was asked for.
  void RememberBlock(Address address);
  // True if it had one.
  bool ForgetBlock(Address address) {
    return !blocks_.empty() && blocks_.erase(address) != 0;
  }
  HistoryContext BlockContext(Address address) const;
  void RememberSegment(Address base);
  void ForgetSegment(Address base) { segments_.erase(base); }
  // The segment at `base` was cut, and its second half begins at `at`.
  void CutSegment(Address base, Address at);
  // The one at `right` is part of the one at `left` from now on.
  void JoinSegments(Address left, Address right);
  HistoryContext SegmentContext(Address base) const;

 private:
  using Contexts = std::unordered_map<Address, HistoryContext>;
  using LabelsOfEvent = std::shared_ptr<const Labels>;
  // With `label` as the user's, if it is not nullptr.
  static LabelsOfEvent LabelsOfThread(const std::string* label = nullptr);
  void Complete(TracePoint& point, const HistoryContext& fallback) const;
  static TraceEvent ToEvent(const TracePoint& point, const Labels* labels);
  void Add(const TracePoint& point, const LabelsOfEvent& labels);
  bool ForTorch() const;  // torch's history or its tracker
  void RecordInRings(const TracePoint& point, EventKind kind);

  std::uint64_t order_ = 0;  // of the device's events in the rings
  Options options_;
  Ring<Entry> ring_;
  Contexts blocks_;  // no entry where none was gathered
  Contexts segments_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_HISTORY_H_
