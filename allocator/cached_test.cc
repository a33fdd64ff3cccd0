// SPDX-License-Identifier: Apache-2.0
// Free memory moves to where it is wanted, and its mappings stay behind.
#include <gtest/gtest.h>

#include "allocator/device_allocator_fixture_test.h"

namespace stratalloc {
namespace {

class CachedTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override { Open(64 * kMiB, {.tiering = false}); }
  // Two pieces of 4 MiB apart from each other, and then 8 MiB.
  void Step(StreamId stream) {
    const Address x = Malloc(4 * kMiB, stream);
    const Address y = Malloc(4 * kMiB, stream);
    const Address z = Malloc(4 * kMiB, stream);
    Use(x, 4 * kMiB, stream);
    Use(z, 4 * kMiB, stream);
    Free(x);
    Free(z);
    const Address w = Malloc(8 * kMiB, stream);
    Use(w, 8 * kMiB, stream);
    Free(w);
    Free(y);
  }
};

TEST_F(CachedTest, AStepThatRepeatsAsksNothingOfTheDriver) {
  const StreamId stream = NewStream();
  for (int i = 0; i < 3; ++i) Step(stream);
  const long before = Calls();
  for (int i = 0; i < 3; ++i) Step(stream);
  EXPECT_EQ(Calls(), before);
  EXPECT_EQ(Reserved(), 12 * kMiB);
  EXPECT_EQ(cudasim_calls("cudaStreamSynchronize"), 0);
}

TEST_F(CachedTest, MemoryOfAnotherStreamMovesOnlyOnceThatIsIdle) {
  const StreamId one = NewStream(), two = NewStream();
  const Address a = Malloc(4 * kMiB, one);
  for (int i = 0; i < 100; ++i) Use(a, 4 * kMiB, one);
  Free(a);
  const Address b = Malloc(4 * kMiB, two);  // `one` is still at work
  EXPECT_EQ(Reserved(), 8 * kMiB);
  ASSERT_TRUE(allocator().device().SynchronizeStream(one));
  Malloc(8 * kMiB, two);
  EXPECT_EQ(Reserved(), 12 * kMiB);
  Use(b, 4 * kMiB, two);
}

TEST_F(CachedTest, AFullCardWaitsForAnotherStreamsMemory) {
  const StreamId one = NewStream(), two = NewStream();
  const Address a = Malloc(40 * kMiB, one);
  Use(a, 40 * kMiB, one);
  Free(a);
  const Address b = Malloc(60 * kMiB, two);
  Use(b, 60 * kMiB, two);
  EXPECT_EQ(Reserved(), 60 * kMiB);
}

TEST_F(CachedTest, EmptyingTheCacheTakesKeptMappingsAlong) {
  const StreamId stream = NewStream();
  Step(stream);
  EXPECT_GT(cudasim_live_mappings(), 6);
  ASSERT_TRUE(allocator().EmptyCache());
  EXPECT_EQ(cudasim_live_mappings(), 0);
  EXPECT_EQ(Reserved(), 0u);
}

// A graph runs on another stream than it was captured on.
TEST_F(CachedTest, MemoryOfAPrivatePoolWaitsForTheDevice) {
  const StreamId captured = NewStream(), replayed = NewStream();
  const PoolId graph{1, 0};
  ASSERT_TRUE(allocator().BeginAllocateToPool(
      graph, [=](StreamId stream) { return stream == captured; }));
  const Address a = Malloc(4 * kMiB, captured);
  ASSERT_TRUE(allocator().EndAllocateToPool(graph));
  for (int i = 0; i < 100; ++i) Use(a, 4 * kMiB, replayed);
  Free(a);
  ASSERT_TRUE(allocator().ReleasePool(graph));
  Malloc(8 * kMiB);  // does not move it
  EXPECT_EQ(Reserved(), 12 * kMiB);
  EXPECT_EQ(cudasim_violation_count(), 0);
  ASSERT_TRUE(allocator().EmptyCache());  // waits
  EXPECT_EQ(Reserved(), 8 * kMiB);
}

TEST_F(CachedTest, EmptyingInARouteCountsItsWaitAsTheCallerAsks) {
  const auto waits = [&] { return allocator().Stats().num_sync_all_streams; };
  const std::int64_t before = waits();
  const PoolId pool{1, 0};
  ASSERT_TRUE(allocator().EmptyCache(/*counted_in_routes=*/false));
  EXPECT_EQ(waits(), before + 1) << "no route is open";
  ASSERT_TRUE(
      allocator().BeginAllocateToPool(pool, [](StreamId) { return true; }));
  ASSERT_TRUE(allocator().EmptyCache(/*counted_in_routes=*/false));
  EXPECT_EQ(waits(), before + 1);
  ASSERT_TRUE(allocator().EmptyCache(/*counted_in_routes=*/true));
  EXPECT_EQ(waits(), before + 2);
  ASSERT_TRUE(allocator().EndAllocateToPool(pool));
  ASSERT_TRUE(allocator().ReleasePool(pool));
}

// Of two places the one that needs less memory.
TEST_F(CachedTest, GrowthPrefersThePlaceThatNeedsTheFewestHandles) {
  const Address a = Malloc(6 * kMiB), wall = Malloc(2 * kMiB);
  const Address b = Malloc(4 * kMiB);
  Free(a);
  ASSERT_TRUE(allocator().EmptyCache());  // the first place has no memory
  Free(b);                                // before what was never mapped
  EXPECT_EQ(Malloc(6 * kMiB), b);
  EXPECT_EQ(Reserved(), 8 * kMiB);
  (void)wall;
}

}  // namespace
}  // namespace stratalloc
