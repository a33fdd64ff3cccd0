// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/pool.h"

#include <gtest/gtest.h>

#include "allocator/values/size_rules.h"

namespace stratalloc {
namespace {

Block At(Address address, Bytes size, BlockState state) {
  Block block;
  block.address = address;
  block.size = size;
  block.state = state;
  return block;
}

TEST(Pool, FreeBlocksAreInTheIndexOfTheirState) {
  Pool pool(PoolKey{});
  Block free = At(1000, 100, BlockState::kFree);
  Block unmapped = At(5000, 50, BlockState::kUnmapped);
  pool.File(&free);
  pool.File(&unmapped);
  EXPECT_EQ(pool.free_blocks().Find(10), &free);
  EXPECT_TRUE(pool.unmapped_blocks().contains(&unmapped));
  pool.Unfile(&free);
  pool.Unfile(&unmapped);
  EXPECT_EQ(pool.free_blocks().Find(10), nullptr);
  EXPECT_TRUE(pool.unmapped_blocks().empty());
}

TEST(Pool, ParkedBlocksAreApart) {
  Pool pool(PoolKey{});
  Block parked = At(10, 10, BlockState::kParked);
  pool.File(&parked);
  EXPECT_EQ(pool.parked_blocks().size(), 1u);
  EXPECT_EQ(pool.free_blocks().Find(1), nullptr) << "nothing to hand out";
  EXPECT_EQ(pool.free_blocks().Largest(), 0u);
  pool.Unfile(&parked);
  EXPECT_TRUE(pool.parked_blocks().empty());
}

TEST(Pool, LiveBlocksAreInNoIndex) {
  Pool pool(PoolKey{});
  Block live = At(0, 10, BlockState::kAllocated);
  pool.File(&live);
  EXPECT_EQ(pool.free_blocks().Find(1), nullptr);
  EXPECT_TRUE(pool.unmapped_blocks().empty());
  EXPECT_TRUE(pool.parked_blocks().empty());
}

TEST(SizeRules, AreNatives) {
  EXPECT_EQ(RoundSize(1), 512u);
  EXPECT_EQ(RoundSize(512), 512u);
  EXPECT_EQ(RoundSize(513), 1024u);
  EXPECT_EQ(KindOf(kMiB), PoolKind::kSmall);
  EXPECT_EQ(KindOf(kMiB + 512), PoolKind::kLarge);
}

TEST(SizeRules, TheLargeHandleFollowsTheCardAndTheBudgets) {
  const auto large = [](Bytes capacity, Bytes host, Bytes disk) {
    return LargeHandleBytes(capacity, host, disk, 2 * kMiB);
  };
  EXPECT_EQ(large(64 * kMiB, 32 * kMiB, 0), 2 * kMiB);
  EXPECT_EQ(large(2 * kGiB, 0, 0), 8 * kMiB);
  EXPECT_EQ(large(3 * kGiB, 0, 0), 8 * kMiB);
  EXPECT_EQ(large(24 * kGiB, 64 * kGiB, 64 * kGiB), 32 * kMiB);
  EXPECT_EQ(large(24 * kGiB, 32 * kMiB, 64 * kGiB), 8 * kMiB);
  EXPECT_EQ(large(24 * kGiB, 64 * kGiB, 32 * kMiB), 8 * kMiB);
  EXPECT_EQ(large(24 * kGiB, 0, 32 * kMiB), 8 * kMiB);
  EXPECT_EQ(large(24 * kGiB, 2 * kMiB, 0), 2 * kMiB);
  // Nothing ever lies in a budget of less than a handle.
  EXPECT_EQ(large(24 * kGiB, kMiB, 64 * kGiB), 32 * kMiB);
  EXPECT_EQ(large(24 * kGiB, 64 * kGiB, kMiB), 32 * kMiB);
}

}  // namespace
}  // namespace stratalloc
