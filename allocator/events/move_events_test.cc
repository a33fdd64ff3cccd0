// SPDX-License-Identifier: Apache-2.0
// What is told of tiers is counted always, and recorded while events are.
#include "allocator/events/move_events.h"

#include <gtest/gtest.h>

namespace stratalloc {
namespace {

constexpr DeviceIndex kGpu{0};
constexpr Bytes kHandle = Bytes{2} << 20;

std::size_t Recorded(const std::vector<std::uint64_t>& since) {
  std::size_t count = 0;
  for (const auto& ring : EventRecorder::Read(since).rings) {
    for (const Event& event : ring.events) {
      count += event.kind != EventKind::kThread;
    }
  }
  return count;
}

// One of each kind; the bytes of the host tier are kHandle more then.
void TellAll(MoveCounts& counts) {
  const MoveEvents events(kGpu, counts);
  events.Moved(0, kHandle, TierId::kDevice, TierId::kHost);
  events.Moved(0, kHandle, TierId::kDevice, TierId::kHost);
  events.Moved(0, kHandle, TierId::kHost, TierId::kDevice);
  events.Moved(0, kHandle, TierId::kDevice, TierId::kDisk);
  MoveEvents::Dropped(kGpu, counts, 0, kHandle, TierId::kDisk);
  events.Stalled(kRootScope, 1);
  events.Late(kRootScope, 1);
}

TEST(MoveEventsTest, CountsWithoutARecording) {
  MoveCounts counts;
  TellAll(counts);
  const MoveCounts::Way out = counts.Of(TierId::kDevice, TierId::kHost);
  EXPECT_EQ(out.moves, 2u);
  EXPECT_EQ(out.bytes, 2 * kHandle);
  EXPECT_EQ(counts.Of(TierId::kHost, TierId::kDevice).bytes, kHandle);
  EXPECT_EQ(counts.Of(TierId::kDevice, TierId::kDisk).moves, 1u);
  EXPECT_EQ(counts.Of(TierId::kDisk, TierId::kDevice).moves, 0u);
  EXPECT_EQ(counts.On(TierId::kHost), kHandle);
  EXPECT_EQ(counts.On(TierId::kDisk), 0u);
  EXPECT_EQ(counts.stalls(), 1u);
  EXPECT_EQ(counts.late(), 1u);
}

TEST(MoveEventsTest, TimeOfABatchCountsOncePerDirection) {
  MoveCounts counts;
  const std::int64_t before = NowNs();
  const MoveEvents events(kGpu, counts);
  for (int i = 0; i < 64; ++i) {
    events.Moved(0, kHandle, TierId::kDevice, TierId::kHost);
  }
  const auto took = static_cast<std::uint64_t>(NowNs() - before);
  const MoveCounts::Way out = counts.Of(TierId::kDevice, TierId::kHost);
  EXPECT_GT(out.ns, 0u);
  EXPECT_LE(out.ns, took);
  EXPECT_EQ(counts.Of(TierId::kHost, TierId::kDevice).ns, 0u);
}

TEST(MoveEventsTest, AWaitIsCountedAsItIsReturned) {
  MoveCounts counts;
  const MoveEvents waits(kGpu, counts);
  const std::uint64_t first = waits.Stalled(kRootScope, 1);
  const std::uint64_t second = waits.Stalled(kRootScope, 1);
  EXPECT_GE(second, first) << "both since it was made";
  EXPECT_EQ(counts.stall_ns(), first + second);
}

TEST(MoveEventsTest, TheRingsHearTheSameWhileEventsAreRecorded) {
  ASSERT_TRUE(EventRecorder::Start(std::nullopt));
  const auto since = EventRecorder::Now();
  MoveCounts counts;
  TellAll(counts);
  EXPECT_EQ(Recorded(since), 7u);
  EXPECT_EQ(counts.On(TierId::kHost), kHandle);
  EventRecorder::Stop();
  TellAll(counts);
  EXPECT_EQ(Recorded(since), 7u);
  EXPECT_EQ(counts.On(TierId::kHost), 2 * kHandle);
}

}  // namespace
}  // namespace stratalloc
