// SPDX-License-Identifier: Apache-2.0
// What is reserved and not allocated, and that it adds up.
#include "allocator/heap/fragmentation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "allocator/private_pool_fixture_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;

class FragmentationTest : public PrivatePoolTest {
 protected:
  Fragmentation Look() {
    Fragmentation found = allocator().Fragments();
    const DeviceStats stats = allocator().Stats();
    const auto now = [](const StatArray& array) {
      return static_cast<Bytes>(array.stats[0].current);
    };
    EXPECT_EQ(found.reserved, now(stats.reserved_bytes));
    EXPECT_EQ(found.allocated, now(stats.allocated_bytes));
    EXPECT_EQ(found.allocated + found.pending, now(stats.active_bytes));
    EXPECT_EQ(found.allocated + found.pending + found.stranded +
                  found.releasable + found.in_private_pools,
              found.reserved);
    EXPECT_LE(found.separated, found.stranded);
    EXPECT_LE(found.stranded_private, found.stranded);
    Bytes holes = 0;
    for (const Hole& hole : found.holes) {
      holes += hole.free;
      EXPECT_GT(hole.blocks, 0);
      EXPECT_LT(hole.free, hole.bytes);
    }
    EXPECT_EQ(holes, found.stranded);
    // What is counted without looking at every block.
    const DeviceReports::Usage usage = allocator().Used();
    EXPECT_EQ(usage.pending, found.pending);
    EXPECT_EQ(usage.stranded, found.stranded);
    EXPECT_EQ(usage.releasable, found.releasable);
    EXPECT_EQ(usage.in_private_pools, found.in_private_pools);
    EXPECT_EQ(usage.largest_free, allocator().LargestCached());
    EXPECT_EQ(usage.limit, allocator().limit());
    EXPECT_EQ(now(usage.stats.reserved_bytes), found.reserved);
    EXPECT_EQ(now(usage.stats.allocated_bytes), found.allocated);
    return found;
  }
  Address Transient(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  }
};

TEST_F(FragmentationTest, NothingIsReserved) {
  const Fragmentation found = Look();
  EXPECT_EQ(found.reserved, 0u);
  EXPECT_EQ(found.ToText(), "");
}

TEST_F(FragmentationTest, RoundingIsWhatNobodyAskedFor) {
  Malloc(1000);
  Malloc(kHandle);
  EXPECT_EQ(Look().rounding, 24u);
}

TEST_F(FragmentationTest, AHoleNamesTheOldestBlockInIt) {
  const Address before = Malloc(512);
  const Address oldest = Malloc(1536);
  Free(before);
  allocator().use_clock() += 5;
  Malloc(512);  // in the same place
  allocator().use_clock() += 2;
  const Fragmentation found = Look();
  EXPECT_EQ(found.stranded, kHandle - 2048);
  ASSERT_EQ(found.holes.size(), 1u);
  const Hole& hole = found.holes[0];
  EXPECT_EQ(hole.blocks, 2);
  EXPECT_EQ(hole.oldest.address, oldest);
  EXPECT_EQ(hole.oldest.charge.scope, kOwner.scope);
  EXPECT_EQ(hole.age, 7u);
  EXPECT_EQ(found.ToText(), "2.00 MiB free beside them in their handles");
}

TEST_F(FragmentationTest, AHandleWithoutBlocksIsReleasable) {
  const Address gone = Malloc(kHandle * 3);
  Malloc(kHandle * 2);
  Free(gone);
  const Fragmentation found = Look();
  EXPECT_EQ(found.releasable, kHandle * 3);
  EXPECT_EQ(found.stranded, 0u);
  EXPECT_TRUE(found.holes.empty());
}

TEST_F(FragmentationTest, WhatAnotherStreamUsesIsPending) {
  const Address used = Malloc(kHandle + 512);
  const StreamId other = NewStream();
  cudasim_hold_streams(1);
  Use(used, kHandle, other);
  ASSERT_TRUE(allocator().RecordStream(used, other).has_value());
  Free(used);
  Fragmentation found = Look();
  EXPECT_EQ(found.pending, kHandle + 512);
  EXPECT_EQ(found.stranded, kHandle - 512);
  EXPECT_EQ(found.holes[0].oldest.state, BlockState::kPending);
  cudasim_hold_streams(0);
  cudaDeviceSynchronize();
  found = Look();
  EXPECT_EQ(found.pending, 0u);
  EXPECT_EQ(found.releasable, 2 * kHandle);
}

// Two classes with a quarter of a handle each: one handle would do.
TEST_F(FragmentationTest, ClassesThatAreKeptApartCostAHandle) {
  Malloc(kHandle / 4);
  EXPECT_EQ(Look().separated, 0u);
  Transient(kHandle / 4);
  EXPECT_EQ(Look().separated, kHandle);
  // A third that fills what is left together needs a handle in any case.
  Malloc(kHandle / 4, kDefaultStream, LifetimeClass::kGradient);
  Malloc(kHandle / 2, kDefaultStream, LifetimeClass::kGradient);
  EXPECT_EQ(Look().separated, kHandle);
}

TEST_F(FragmentationTest, APrivatePoolsFreeMemoryIsItsOwn) {
  Route(kUser);
  const Address kept = Malloc(512);
  const Address gone = Malloc(kHandle * 2);
  EndRoute(kUser);
  Free(gone);
  const Fragmentation found = Look();
  EXPECT_EQ(found.in_private_pools, kHandle * 2);
  EXPECT_EQ(found.stranded_private, kHandle - 512);
  EXPECT_EQ(found.ToText(),
            "2.00 MiB free beside blocks of private pools, 4.00 MiB free in "
            "private pools");
  Free(kept);
  Release(kUser);
}

TEST_F(FragmentationTest, ItAddsUpWhateverIsAllocated) {
  std::mt19937 random(7);
  const StreamId other = NewStream();
  std::vector<Address> blocks;
  for (int step = 0; step < 400; ++step) {
    if (!blocks.empty() && random() % 5 < 2) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      Free(blocks.back());
      blocks.pop_back();
    } else if (live_.size() < 60) {
      const Bytes bytes = 1 + random() % (random() % 3 == 0 ? 3 * kMiB : 65536);
      blocks.push_back(Malloc(bytes, random() % 2 == 0 ? kDefaultStream : other,
                              LifetimeClass(random() % kLifetimeClasses)));
    }
    if (step % 8 == 0) Look();
  }
}

}  // namespace
}  // namespace stratalloc
