// SPDX-License-Identifier: Apache-2.0
// What history hears of a handle that leaves the device and returns: replayed,
// its events give the snapshot at every moment.
#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"
#include "allocator/events/event_recorder.h"
#include "allocator/heap/history.h"
#include "allocator/moving_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kLess = 1000;  // what was asked for, below the block's end

class EvictedHistoryTest : public DeviceAllocatorTest {
 protected:
  using Line = std::tuple<TraceAction, Address, Bytes, std::string>;

  void SetUp() override {
    Open(64 * kMiB, {.tiering = true});
    History::Options options;
    options.enabled = true;
    options.max_entries = 100;
    allocator().ConfigureHistory(options);
  }
  HandleRef HandleAt(Address address) {
    return stratalloc::HandleAt(allocator(), address);
  }
  void Evict(HandleRef handle) { EvictToHost(allocator(), handle); }
  void Restore(HandleRef handle) {
    auto memory = allocator().TakePhysical(handle.bytes());
    ASSERT_TRUE(memory.has_value());
    stratalloc::Restore(allocator(), handle, *memory, kNoEvent);
  }
  // The events since the last call.
  std::vector<Line> News() {
    std::vector<Line> lines;
    const std::vector<TraceEvent> events = allocator().Traces();
    for (std::size_t i = seen_; i < events.size(); ++i) {
      lines.push_back({events[i].action, events[i].address, events[i].bytes,
                       events[i].user_metadata});
    }
    seen_ = events.size();
    return lines;
  }
  std::size_t seen_ = 0;
};

TEST_F(EvictedHistoryTest, WhatStaysOfABlockIsAllocatedAgain) {
  const Address probe = Malloc(8 * kMiB);
  const Bytes whole = HandleAt(probe).bytes();
  Free(probe);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  // One handle and a half: two pieces once one of them is away.
  const Bytes bytes = whole + whole / 2;
  const Address block = Malloc(bytes - kLess);
  const HandleRef first = HandleAt(block);
  ASSERT_EQ(first.address(), block);
  News();
  Evict(first);
  EXPECT_EQ(
      News(),
      (std::vector<Line>{
          {TraceAction::kFreeRequested, block, bytes - kLess, "evicted"},
          {TraceAction::kFreeCompleted, block, bytes - kLess, "evicted"},
          {TraceAction::kSegmentUnmap, block, whole, "evicted"},
          {TraceAction::kAlloc, block + whole, whole / 2 - kLess, "evicted"}}));
  Restore(first);
  EXPECT_EQ(News(),
            (std::vector<Line>{
                {TraceAction::kFreeRequested, block + whole, whole / 2 - kLess,
                 "restored"},
                {TraceAction::kFreeCompleted, block + whole, whole / 2 - kLess,
                 "restored"},
                {TraceAction::kSegmentMap, block, whole, "restored"},
                {TraceAction::kAlloc, block, bytes - kLess, "restored"}}));
  Free(block);
  EXPECT_EQ(News(),
            (std::vector<Line>{
                {TraceAction::kFreeRequested, block, bytes - kLess, ""},
                {TraceAction::kFreeCompleted, block, bytes - kLess, ""}}));
}

// Only what touches the handle changes: not the other pieces of its block, and
// no free memory beside it.
TEST_F(EvictedHistoryTest, OnlyWhatTouchesTheHandleIsHeardOf) {
  const Address probe = Malloc(8 * kMiB);
  const Bytes whole = HandleAt(probe).bytes();
  Free(probe);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  const Address block = Malloc(5 * whole);
  ASSERT_EQ(HandleAt(block).address(), block);
  Evict(HandleAt(block + 2 * whole));
  News();
  Evict(HandleAt(block));
  const std::vector<Line> left = News();
  ASSERT_EQ(left.size(), 4u);
  EXPECT_EQ(left[0],
            (Line{TraceAction::kFreeRequested, block, 2 * whole, "evicted"}));
  EXPECT_EQ(left[3],
            (Line{TraceAction::kAlloc, block + whole, whole, "evicted"}));
  Free(block);
  // The rest of this handle is free.
  const Address half = Malloc(5 * whole + whole / 2);
  const HandleRef last = HandleAt(half + 5 * whole);
  News();
  Evict(last);
  Restore(last);
  for (const Line& line : News()) {
    if (std::get<0>(line) == TraceAction::kSegmentMap ||
        std::get<0>(line) == TraceAction::kSegmentUnmap) {
      continue;
    }
    EXPECT_EQ(std::get<1>(line), half);
  }
}

// A block that is away in the whole has nothing on the device to free.
TEST_F(EvictedHistoryTest, ABlockThatIsAwayEndsUnheard) {
  const Address block = Malloc(8 * kMiB);
  const HandleRef handle = HandleAt(block);
  const Bytes whole = handle.bytes();
  const Bytes rest = 8 * kMiB > whole ? 8 * kMiB - whole : 0;
  News();
  Evict(handle);
  News();
  Free(block);
  std::vector<Line> wanted;
  if (rest > 0) {
    wanted = {{TraceAction::kFreeRequested, block + whole, rest, ""},
              {TraceAction::kFreeCompleted, block + whole, rest, ""}};
  }
  EXPECT_EQ(News(), wanted);
}

// The event rings know a block by where it begins, so its end is told there.
TEST_F(EvictedHistoryTest, TheRingsHearOfABlockThatEndsAway) {
  ASSERT_TRUE(EventRecorder::Start({}));
  const Address away = Malloc(8 * kMiB - kLess), there = Malloc(8 * kMiB);
  Evict(HandleAt(away));
  // Where it begins stays, if it has several handles.
  const HandleRef last = HandleAt(there + 8 * kMiB - 1);
  if (last.address() != HandleAt(there).address()) Evict(last);
  const std::vector<std::uint64_t> since = EventRecorder::Now();
  Free(away);
  Free(there);
  EventRecorder::Stop();
  std::vector<Event> ended;
  for (const auto& ring : EventRecorder::Read(since).rings) {
    std::copy_if(
        ring.events.begin(), ring.events.end(), std::back_inserter(ended),
        [](const Event& event) { return event.kind == EventKind::kFreedAway; });
  }
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].address, away);
  EXPECT_EQ(ended[0].bytes, 8 * kMiB - kLess);
  EXPECT_EQ(SizeOf(ended[0]), Rounded(8 * kMiB - kLess));
  EXPECT_GT(OrderOf(ended[0].aux), 0u);
}

// Freed, and another stream still uses it: on the device it is neither
// allocated nor free, and so it is after the return.
TEST_F(EvictedHistoryTest, AFreeThatWaitsIsAskedForAgain) {
  const StreamId other = NewStream();
  const Address block = Malloc(8 * kMiB);
  const HandleRef handle = HandleAt(block);
  const Bytes whole = handle.bytes();
  ASSERT_TRUE(allocator().RecordStream(block, other).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(block);
  News();
  Evict(handle);
  const std::vector<Line> left = News();
  ASSERT_GE(left.size(), 2u);
  EXPECT_EQ(left[0],
            (Line{TraceAction::kFreeCompleted, block, 8 * kMiB, "evicted"}));
  EXPECT_EQ(left[1],
            (Line{TraceAction::kSegmentUnmap, block, whole, "evicted"}));
  Restore(handle);
  const std::vector<Line> back = News();
  ASSERT_GE(back.size(), 3u);
  EXPECT_EQ(back[back.size() - 2],
            (Line{TraceAction::kAlloc, block, 8 * kMiB, "restored"}));
  EXPECT_EQ(back.back(),
            (Line{TraceAction::kFreeRequested, block, 8 * kMiB, "restored"}));
  cudasim_clear_faults();
}

}  // namespace
}  // namespace stratalloc
