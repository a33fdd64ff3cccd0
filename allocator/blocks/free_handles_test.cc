// SPDX-License-Identifier: Apache-2.0
// Free handles that move, and that go back.
#include "allocator/blocks/free_handles.h"

#include <gtest/gtest.h>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

const StreamsIdle kIdle = [](std::uint64_t) { return true; };
const StreamsIdle kBusy = [](std::uint64_t streams) { return streams == 0; };

class FreeHandlesTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    // Three free handles with memory, and a fourth that is partly used.
    Block* const first = Malloc(kLarge, 6 * kMiB);
    used_ = Malloc(kLarge, kMiB);
    segment_ = first->segment;
    Free(first);
  }
  void TearDown() override {
    Free(used_);
    DevicePartsTest::TearDown();
  }
  FreeHandles& handles() { return parts().free_handles; }
  HandleRef At(std::uint64_t number) {
    HandleRegion* const region = segment_->region;
    return {region, region->IndexOf(segment_->base) + number};
  }
  HandleState State(std::uint64_t number) { return At(number).entry().state; }
  // Free address space of another stream, for `handles`.
  Segment& Space(StreamId stream, std::uint64_t handles) {
    PoolKey key = kLarge;
    key.stream = stream;
    return *parts().heap.AddSegment(parts().placement.PoolOf(key),
                                    *segment_->region, handles * kHandle);
  }

  Segment* segment_ = nullptr;
  Block* used_ = nullptr;
};

TEST_F(FreeHandlesTest, AReleaseTakesWholeFreeHandlesAndNoMoreThanAsked) {
  FreeHandles::Release release = handles().BeginRelease(3 * kMiB, PoolId{});
  EXPECT_EQ(release.handles.size(), 2u);
  EXPECT_EQ(release.used_streams, 1u) << "the default stream used them";
  EXPECT_EQ(State(0), HandleState::kReleasing);
  EXPECT_EQ(Search(kLarge, 4 * kMiB, 0).block, nullptr) << "nobody's";
  EXPECT_EQ(handles().EndRelease(release, /*fenced=*/true), 2 * kHandle);
  EXPECT_EQ(State(0), HandleState::kUnmapped);
  EXPECT_EQ(State(2), HandleState::kResident);
  EXPECT_EQ(Reserved(), 2 * kHandle);
  EXPECT_EQ(handles().BeginRelease(~Bytes{0}, PoolId{}).handles.size(), 1u)
      << "the last one is in use";
  handles().EndRelease({{At(2)}}, /*fenced=*/false);
}

TEST_F(FreeHandlesTest, WhatCouldNotBeWaitedForStays) {
  const FreeHandles::Release release =
      handles().BeginRelease(~Bytes{0}, PoolId{});
  EXPECT_EQ(handles().EndRelease(release, /*fenced=*/false), 0u);
  EXPECT_EQ(State(0), HandleState::kResident);
  EXPECT_EQ(Reserved(), 4 * kHandle);
  EXPECT_NE(Search(kLarge, 6 * kMiB, 0).block, nullptr);
}

TEST_F(FreeHandlesTest, PrivatePoolsInUseKeepTheirs) {
  constexpr PoolId kUser{0, 1};
  parts().private_pools.Use(kUser);
  PoolKey key = kLarge;
  key.owner = kUser;
  Free(Malloc(key, 2 * kMiB));
  const FreeHandles::Release others =
      handles().BeginRelease(~Bytes{0}, PoolId{});
  EXPECT_EQ(others.handles.size(), 2u) << "one has moved to the pool";
  const FreeHandles::Release own = handles().BeginRelease(~Bytes{0}, kUser);
  ASSERT_EQ(own.handles.size(), 1u);
  EXPECT_EQ(own.used_streams >> StreamTable::kOverflowBit & 1, 1u)
      << "a graph runs on any stream";
  handles().EndRelease(others, /*fenced=*/true);
  handles().EndRelease(own, /*fenced=*/true);
  ASSERT_TRUE(parts().private_pools.Release(kUser).has_value());
  parts().placement.ForgetPools();
}

TEST_F(FreeHandlesTest, OnlyIdleMemoryMovesToAnotherStream) {
  Segment& wanted = Space(NewStream(), 2);
  handles().MoveTo(wanted, wanted.base, wanted.end(), kBusy);
  EXPECT_EQ(Reserved(), 4 * kHandle) << "its stream is not done";
  handles().MoveTo(wanted, wanted.base, wanted.end(), kIdle);
  EXPECT_EQ(Reserved(), 2 * kHandle) << "as many as are wanted";
  EXPECT_EQ(parts().pages.free_bytes(), 2 * kHandle);
}

TEST_F(FreeHandlesTest, WorkOfTheSameStreamIsInOrder) {
  Segment& wanted = Space(kDefaultStream, 1);
  handles().MoveTo(wanted, wanted.base, wanted.end(), kBusy);
  EXPECT_EQ(Reserved(), 3 * kHandle);
}

TEST_F(FreeHandlesTest, APlaceIsBusyWhileItsMappingIsUsedElsewhere) {
  const Address lo = segment_->base, hi = lo + kHandle;
  EXPECT_EQ(handles().BusyPlace(lo, hi, 0, kBusy), 0u) << "it has memory";
  // The memory moves away, its mapping is kept, and it is in use there.
  HandleEntry& entry = At(0).entry();
  PhysicalMemory* const memory = entry.physical;
  handles().GiveUp({At(0)}, /*fenced=*/false);
  ASSERT_EQ(entry.physical, memory) << "kept";
  EXPECT_EQ(handles().BusyPlace(lo, hi, 0, kBusy), 0u) << "free to have back";
  PoolKey key = kLarge;
  key.stream = NewStream();
  Block* const taker = Malloc(key, kHandle);
  ASSERT_FALSE(memory->free);
  EXPECT_EQ(handles().BusyPlace(lo, hi, 0, kBusy), lo);
  EXPECT_EQ(handles().BusyPlace(lo, hi, 0, kIdle), 0u)
      << "the old mapping may go";
  Free(taker);
}

}  // namespace
}  // namespace stratalloc
