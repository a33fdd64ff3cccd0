// SPDX-License-Identifier: Apache-2.0
// History: order of events, the ring's bound, contexts, labels, trackers,
// several devices.
#include "allocator/heap/history.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"

namespace stratalloc {
namespace {

std::vector<TraceEvent>* heard = nullptr;

class HistoryTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    DeviceAllocatorTest::SetUp();
    History::SetClock([]() -> std::int64_t { return 7; });
  }
  void TearDown() override {
    History::SetTracker(nullptr);
    History::SetThreadContext(nullptr);
    allocator().NoteTracker();
    heard = nullptr;
    DeviceAllocatorTest::TearDown();
  }
  static std::vector<TraceAction> ActionsOf(
      const std::vector<TraceEvent>& events) {
    std::vector<TraceAction> actions;
    for (const TraceEvent& event : events) actions.push_back(event.action);
    return actions;
  }
  // Switches on, with room for `entries`.
  void Record(std::size_t entries, bool contexts_in_events = true) {
    History::Options options;
    options.enabled = true;
    options.contexts_in_events = contexts_in_events;
    options.max_entries = entries;
    allocator().ConfigureHistory(options);
  }
  void Stop() { allocator().ConfigureHistory({}); }
  std::vector<TraceAction> Actions() { return ActionsOf(allocator().Traces()); }
  std::vector<Bytes> Sizes() {
    std::vector<Bytes> sizes;
    for (const TraceEvent& event : allocator().Traces()) {
      sizes.push_back(event.bytes);
    }
    return sizes;
  }
  // Contexts are told apart by their address.
  static HistoryContext Context() { return std::make_shared<int>(); }
};

TEST_F(HistoryTest, TheOldestEventsAreOverwrittenFirst) {
  const Address kept = Malloc(512);  // no mapping later on
  Record(4);
  for (Bytes bytes : {100, 200, 300}) Free(Malloc(bytes));
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{200, 300, 300, 300}));
  EXPECT_EQ(
      Actions(),
      (std::vector{TraceAction::kFreeCompleted, TraceAction::kAlloc,
                   TraceAction::kFreeRequested, TraceAction::kFreeCompleted}));
  Free(kept);
}

TEST_F(HistoryTest, TheLengthChangesWhileRecording) {
  const Address kept = Malloc(512);
  Record(4);
  for (Bytes bytes : {100, 200}) Free(Malloc(bytes));
  Record(2);  // shorter: the newest stay
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{200, 200}));
  Free(Malloc(300));
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{300, 300}));
  Record(5);  // longer: nothing is lost, and there is room for three
  Free(Malloc(400));
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{300, 300, 400, 400, 400}));
  Free(Malloc(500));
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{400, 400, 500, 500, 500}));
  Record(0);  // native keeps one, too
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{500}));
  Free(kept);
}

TEST_F(HistoryTest, SwitchingOffForgetsAndOnAgainGoesOn) {
  Record(100);
  const Address address = Malloc(1000);
  Record(100);  // on when it is on: what was recorded stays
  EXPECT_EQ(Actions(),
            (std::vector{TraceAction::kSegmentMap, TraceAction::kAlloc}));
  Stop();
  EXPECT_TRUE(Actions().empty());
  Free(address);
  EXPECT_TRUE(Actions().empty());
  Record(100);
  const Address again = Malloc(1000);
  EXPECT_EQ(Actions(), (std::vector{TraceAction::kAlloc}));
  History::Options clear;
  clear.enabled = true;
  clear.max_entries = 100;
  clear.clear = true;
  allocator().ConfigureHistory(clear);
  EXPECT_TRUE(Actions().empty());
  Free(again);
  EXPECT_EQ(Actions(), (std::vector{TraceAction::kFreeRequested,
                                    TraceAction::kFreeCompleted}));
}

TEST_F(HistoryTest, SkippedActionsAreOnlyKeptOutOfTheRing) {
  std::vector<TraceEvent> events;
  heard = &events;
  History::SetTracker([](const TraceEvent& event) { heard->push_back(event); });
  History::Options options;
  options.enabled = true;
  options.max_entries = 100;
  options.skipped = 1u << static_cast<int>(TraceAction::kFreeRequested);
  allocator().ConfigureHistory(options);
  Free(Malloc(1000));
  EXPECT_EQ(Actions(),
            (std::vector{TraceAction::kSegmentMap, TraceAction::kAlloc,
                         TraceAction::kFreeCompleted}));
  EXPECT_EQ(events.size(), 4u);
}

TEST_F(HistoryTest, ABlockKeepsTheContextOfItsAllocation) {
  Record(100);
  const HistoryContext first = Context(), second = Context();
  History::SetThreadContext(first);
  const Address address = Malloc(1000);
  History::SetThreadContext(second);
  const Address other = Malloc(1000);  // from the same segment
  History::SetThreadContext(nullptr);
  Free(other);
  Free(Malloc(3000));  // nobody's
  for (const SegmentView& view : allocator().Snapshot()) {
    EXPECT_EQ(view.context, first) << "where it was first mapped";
    for (const BlockView& block : view.blocks) {
      EXPECT_EQ(block.context, block.address == address ? first : nullptr);
    }
  }
  std::vector<HistoryContext> contexts;
  for (const TraceEvent& event : allocator().Traces()) {
    contexts.push_back(event.context);
  }
  // A free without a context has its block's.
  EXPECT_EQ(contexts,
            (std::vector<HistoryContext>{first, first, second, second, second,
                                         nullptr, nullptr, nullptr}));
}

TEST_F(HistoryTest, ASegmentKeepsTheContextOfItsFirstMapping) {
  Record(100);
  const HistoryContext first = Context();
  History::SetThreadContext(first);
  Malloc(2 * kMiB);
  History::SetThreadContext(Context());
  Malloc(6 * kMiB);  // maps more of the same segment
  ASSERT_EQ(allocator().Snapshot().size(), 1u);
  EXPECT_EQ(allocator().Snapshot()[0].context, first);
}

// Its memory moved to another stream's segment, and was mapped again later.
TEST_F(HistoryTest, ASegmentThatWasEmptyHasTheContextOfItsLatestMapping) {
  Record(100);
  const StreamId other = NewStream();
  History::SetThreadContext(Context());
  const Address first = Malloc(8 * kMiB);
  Free(first);
  History::SetThreadContext(Context());
  Malloc(8 * kMiB, other);
  const HistoryContext again = Context();
  History::SetThreadContext(again);
  ASSERT_EQ(Malloc(8 * kMiB), first);
  History::SetThreadContext(nullptr);
  for (const SegmentView& view : allocator().Snapshot()) {
    if (view.stream != other) {
      EXPECT_EQ(view.context, again);
    }
  }
}

TEST_F(HistoryTest, ASnapshotSaysHowMuchIsActive) {
  Record(100);
  allocator().RecordSnapshot(PoolId{}, 4096);
  EXPECT_EQ(Actions(), (std::vector{TraceAction::kSnapshot}));
  EXPECT_EQ(Sizes(), (std::vector<Bytes>{4096}));
}

TEST_F(HistoryTest, WithoutContextsInEventsBlocksStillHaveTheirs) {
  Record(100, /*contexts_in_events=*/false);
  const HistoryContext context = Context();
  History::SetThreadContext(context);
  const Address address = Malloc(1000);
  for (const TraceEvent& event : allocator().Traces()) {
    EXPECT_EQ(event.context, nullptr);
  }
  EXPECT_EQ(allocator().Snapshot().at(0).blocks.at(0).context, context);
  // A context ends with its block, though nothing is recorded by then.
  Stop();
  History::SetThreadContext(nullptr);
  const long before = context.use_count();
  Free(address);
  EXPECT_EQ(context.use_count(), before - 1);
  Malloc(1000);
  EXPECT_EQ(allocator().Snapshot().at(0).blocks.at(0).context, nullptr);
}

TEST_F(HistoryTest, LabelsAreStampedOnEveryEvent) {
  Record(100);
  History::UserMetadata() = "mine";
  History::PushCompileContext("outer");
  History::PushCompileContext("inner");
  const Address address = Malloc(1000);
  History::PopCompileContext();
  Free(address);
  History::PopCompileContext();
  History::PopCompileContext();  // one too many does no harm
  History::UserMetadata() = "";
  const Address later = Malloc(1000);
  std::vector<std::pair<std::string, std::string>> labels;
  for (const TraceEvent& event : allocator().Traces()) {
    labels.push_back({event.user_metadata, event.compile_context});
    EXPECT_EQ(event.time, 7);
  }
  EXPECT_EQ(labels,
            (std::vector<std::pair<std::string, std::string>>{{"mine", "inner"},
                                                              {"mine", "inner"},
                                                              {"mine", "outer"},
                                                              {"mine", "outer"},
                                                              {"", "N/A"}}));
  Free(later);
}

TEST_F(HistoryTest, ACompileContextAloneIsALabel) {
  Record(100);
  History::PushCompileContext("alone");
  const Address address = Malloc(1000);
  History::PopCompileContext();
  const TraceEvent event = allocator().Traces().back();
  EXPECT_EQ(event.compile_context, "alone");
  EXPECT_EQ(event.user_metadata, "");
  Free(address);
}

// An event in the place of an older one has nothing of it.
TEST_F(HistoryTest, WhatIsOverwrittenLeavesNothingBehind) {
  const Address kept = Malloc(512);
  Record(2);
  History::SetThreadContext(Context());
  History::UserMetadata() = "mine";
  Free(Malloc(1000));
  History::SetThreadContext(nullptr);
  History::UserMetadata() = "";
  Free(Malloc(2000));
  for (const TraceEvent& event : allocator().Traces()) {
    EXPECT_EQ(event.bytes, 2000u);
    EXPECT_EQ(event.context, nullptr);
    EXPECT_EQ(event.user_metadata, "");
  }
  Free(kept);
}

TEST_F(HistoryTest, AContextEndsWithAFreeThatWaited) {
  const StreamId other = NewStream();
  Record(100, /*contexts_in_events=*/false);
  const HistoryContext context = Context();
  History::SetThreadContext(context);
  const Address address = Malloc(1000), neighbour = Malloc(1000);
  History::SetThreadContext(nullptr);
  Free(neighbour);
  ASSERT_TRUE(allocator().RecordStream(address, other).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(address);
  const long before = context.use_count();
  cudasim_clear_faults();
  Free(Malloc(5000));
  EXPECT_EQ(context.use_count(), before - 1);
}

TEST_F(HistoryTest, MemoryThatRanOutNamesThePoolThatAsked) {
  const PoolId pool{0, 1};
  Record(100);
  ASSERT_TRUE(
      allocator().BeginAllocateToPool(pool, [](StreamId) { return true; }));
  allocator().RecordOutOfMemory(kDefaultStream, 1000, {}, 0);
  ASSERT_TRUE(allocator().EndAllocateToPool(pool));
  allocator().RecordOutOfMemory(kDefaultStream, 1000, {}, 0);
  EXPECT_EQ(allocator().Traces().at(0).pool, pool);
  EXPECT_EQ(allocator().Traces().at(1).pool, PoolId{});
  ASSERT_TRUE(allocator().ReleasePool(pool));
}

TEST_F(HistoryTest, EventsOfMemoryThatRanOutHaveTheRoundedSize) {
  Record(100);
  EXPECT_EQ(allocator().RecordOutOfMemory(kDefaultStream, 1001, {}, 77), 1024u);
  const TraceEvent event = allocator().Traces().at(0);
  EXPECT_EQ(event.action, TraceAction::kOutOfMemory);
  EXPECT_EQ(event.bytes, 1024u);
  EXPECT_EQ(event.address, 77u);  // free on the card
}

TEST_F(HistoryTest, AFreeThatWaitsIsCompletedByTheNextCallThatLooks) {
  const StreamId other = NewStream();
  Record(100);
  const Address address = Malloc(1000);
  Use(address, 1000, other);
  ASSERT_TRUE(allocator().RecordStream(address, other).has_value());
  Free(address);
  EXPECT_EQ(Actions().back(), TraceAction::kFreeRequested);
  cudaDeviceSynchronize();
  const Address next = Malloc(5000);
  const std::vector<TraceAction> actions = Actions();
  EXPECT_EQ(std::vector(actions.end() - 2, actions.end()),
            (std::vector{TraceAction::kFreeCompleted, TraceAction::kAlloc}));
  Free(next);
}

TEST_F(HistoryTest, ATrackerHearsOfEveryEvent) {
  std::vector<TraceEvent> events;
  heard = &events;
  History::SetTracker([](const TraceEvent& event) { heard->push_back(event); });
  allocator().NoteTracker();
  const Address address = Malloc(1000);
  Free(address);
  EXPECT_EQ(
      ActionsOf(events),
      (std::vector{TraceAction::kSegmentMap, TraceAction::kAlloc,
                   TraceAction::kFreeRequested, TraceAction::kFreeCompleted}));
  EXPECT_TRUE(Actions().empty()) << "nobody asked for a ring";
  EXPECT_EQ(events[1].address, address);
  EXPECT_EQ(events[1].bytes, 1000u);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(events.back().action, TraceAction::kSegmentUnmap);
  // A second block, with nobody listening.
  History::SetTracker(nullptr);
  allocator().NoteTracker();
  const std::size_t before = events.size();
  Free(Malloc(1000));
  EXPECT_EQ(events.size(), before);
}

TEST_F(HistoryTest, TheTrackerHearsBeforeTheRingAndInTheSameOrder) {
  std::vector<TraceEvent> events;
  heard = &events;
  History::SetTracker([](const TraceEvent& event) { heard->push_back(event); });
  Record(1000);
  const Address one = Malloc(1000), two = Malloc(3 * kMiB);
  Free(one);
  Free(two);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  ASSERT_GT(events.size(), 8u);
  EXPECT_EQ(ActionsOf(events), Actions());
  // What is mapped and what is unmapped add up.
  Bytes mapped = 0, unmapped = 0;
  for (const TraceEvent& event : events) {
    if (event.action == TraceAction::kSegmentMap) mapped += event.bytes;
    if (event.action == TraceAction::kSegmentUnmap) unmapped += event.bytes;
  }
  EXPECT_EQ(mapped, unmapped);
  EXPECT_EQ(mapped, 6 * kMiB);
}

TEST_F(HistoryTest, AnnotationHasItsOwnLabelAndChangesNothing) {
  Record(10);
  History::UserMetadata() = "the thread's";
  const Address block = Malloc(1000);
  const DeviceStats before = allocator().Stats();
  EXPECT_TRUE(allocator().Annotate(block, "packed"));
  History::UserMetadata().clear();
  EXPECT_FALSE(allocator().Annotate(block + 512, "no block begins there"));
  const std::vector<TraceEvent> events = allocator().Traces();
  ASSERT_EQ(events.back().action, TraceAction::kAnnotate);
  EXPECT_EQ(events.back().address, block);
  EXPECT_EQ(events.back().bytes, 1000u);
  EXPECT_EQ(events.back().user_metadata, "packed");
  EXPECT_EQ(events.back().compile_context, "N/A");
  EXPECT_EQ(events[events.size() - 2].user_metadata, "the thread's");
  EXPECT_EQ(Of(allocator().Stats().allocation).allocated,
            Of(before.allocation).allocated);
  Stop();
}

TEST_F(HistoryTest, ContextOfABlockIsThatOfItsMalloc) {
  Record(10);
  const auto context = std::make_shared<int>(3);
  History::SetThreadContext(context);
  const Address block = Malloc(1000);
  History::SetThreadContext(nullptr);
  const Address other = Malloc(1000);
  EXPECT_EQ(allocator().ContextOf(block), context);
  EXPECT_EQ(allocator().ContextOf(block + 512), nullptr);
  EXPECT_EQ(allocator().ContextOf(other), nullptr);
  Free(block);
  EXPECT_EQ(allocator().ContextOf(block), nullptr);
  Stop();
}

TEST_F(HistoryTest, InternalLabelEndsWithItsCall) {
  const Address base = Malloc(8192);
  Free(base);
  Record(10);
  const Result<AllocatedBlock> block = allocator().MallocAt(
      {512, kDefaultStream, LifetimeClass::kPersistent, kOwner}, base + 1024);
  ASSERT_TRUE(block.has_value()) << block.error().message;
  live_.push_back(block->address);
  for (const TraceEvent& event : allocator().Traces()) {
    EXPECT_EQ(event.internal_metadata, "mallocWithAddress");
  }
  EXPECT_EQ(allocator().Traces().size(),
            4u);  // the part in front comes and goes
  Malloc(512);
  EXPECT_EQ(allocator().Traces().back().internal_metadata, "");
  Stop();
}

}  // namespace
}  // namespace stratalloc
