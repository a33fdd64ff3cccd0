// SPDX-License-Identifier: Apache-2.0
// Where memory for a request comes from, search by search.
#include "allocator/blocks/placement.h"

#include <gtest/gtest.h>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kUser{0, 1};

class PlacementTest : public DevicePartsTest {
 protected:
  PoolKey Of(LifetimeClass lifetime) {
    PoolKey key = kLarge;
    key.lifetime = lifetime;
    return key;
  }
};

TEST_F(PlacementTest, WithoutALimitOnlyWhatIsCachedServes) {
  const Placement::Found nothing = Search(kLarge, 3 * kMiB, /*limit=*/0);
  EXPECT_EQ(nothing.block, nullptr);
  EXPECT_EQ(nothing.lacking, 3 * kMiB);
  EXPECT_FALSE(nothing.error.has_value());
  EXPECT_TRUE(parts().heap.segments().empty()) << "no address space either";
  Free(Malloc(kLarge, 3 * kMiB));
  const Placement::Found cached = Search(kLarge, 3 * kMiB, /*limit=*/0);
  ASSERT_NE(cached.block, nullptr);
  EXPECT_EQ(cached.block->size, 4 * kMiB);
}

TEST_F(PlacementTest, MemoryGrowsToTheLimitAndSaysWhatItLacks) {
  Block* const block = Malloc(kLarge, 6 * kMiB);
  EXPECT_EQ(block->segment->bytes, 8 * kMiB) << "Options::segment_bytes";
  EXPECT_EQ(Reserved(), 6 * kMiB);
  const Placement::Found found = Search(kLarge, 6 * kMiB, /*limit=*/8 * kMiB);
  EXPECT_EQ(found.block, nullptr);
  EXPECT_GE(found.lacking, 4 * kMiB);
  EXPECT_FALSE(found.error.has_value()) << "for want of memory";
  EXPECT_NE(Search(kLarge, 2 * kMiB, /*limit=*/8 * kMiB).block, nullptr);
  EXPECT_EQ(Reserved(), 8 * kMiB);
  Free(block);
}

TEST_F(PlacementTest, ADriverThatFailsOtherwiseIsTold) {
  cudasim_fail("cuMemMap", 1, /*error=*/1, /*every=*/0);
  const Placement::Found found = Search(kLarge, 3 * kMiB);
  EXPECT_EQ(found.block, nullptr);
  ASSERT_TRUE(found.error.has_value());
  EXPECT_EQ(Reserved(), 0u);
}

TEST_F(PlacementTest, OtherClassesFreeHandlesComeFirst) {
  Free(Malloc(Of(LifetimeClass::kGradient), 6 * kMiB));
  const long calls = cudasim_calls("cuMemCreate");
  Block* const block = Malloc(Of(LifetimeClass::kOptimizer), 5 * kMiB);
  EXPECT_EQ(cudasim_calls("cuMemCreate"), calls);
  EXPECT_EQ(Reserved(), 6 * kMiB);
  EXPECT_EQ(block->segment->pool->key().lifetime, LifetimeClass::kOptimizer);
  Free(block);
}

TEST_F(PlacementTest, CachedMemoryOfAnotherStreamMovesBeforeTheDriverIsAsked) {
  Free(Malloc(kLarge, 6 * kMiB));
  const long calls = cudasim_calls("cuMemCreate");
  PoolKey key = kLarge;
  key.stream = NewStream();
  Block* const block = Malloc(key, 6 * kMiB);
  EXPECT_EQ(cudasim_calls("cuMemCreate"), calls);
  EXPECT_EQ(Reserved(), 6 * kMiB);
  Free(block);
}

TEST_F(PlacementTest, ABlockInABinMayFitBetter) {
  Block* const small = Malloc(kLarge, 3 * kMiB);
  Pool& pool = *small->segment->pool;
  Block* const large = Malloc(kLarge, 5 * kMiB);
  // As the fast path frees it.
  parts().live.FreeAtOnce(PoolKind::kLarge, small->size, small->requested);
  small->account->Free(small->size);
  ASSERT_TRUE(pool.bins().Put(small));
  small->state = BlockState::kBinned;
  Free(large);
  EXPECT_EQ(parts().placement.FindCached(pool, 2 * kMiB)->size, 8 * kMiB)
      << "merged with what the bin had";
  EXPECT_TRUE(pool.bins().empty());
}

TEST_F(PlacementTest, OnlyPoolsThatLendServeOthers) {
  parts().private_pools.Use(kUser);
  PoolKey key = Of(LifetimeClass::kTransient);
  key.owner = kUser;
  Free(Malloc(key, 4 * kMiB));
  EXPECT_EQ(parts().placement.Borrow(kLarge, 3 * kMiB), nullptr);
  parts().private_pools.Find(kUser)->use_on_oom = true;
  EXPECT_NE(parts().placement.Borrow(kLarge, 3 * kMiB), nullptr);
  EXPECT_EQ(parts().placement.Borrow(key, 3 * kMiB), nullptr)
      << "a private pool does not borrow";
  ASSERT_TRUE(parts().private_pools.Release(kUser).has_value());
}

TEST_F(PlacementTest, APrivatePoolIsForgottenOnceItsMemoryIsGone) {
  parts().private_pools.Use(kUser);
  PoolKey key = Of(LifetimeClass::kTransient);
  key.owner = kUser;
  Free(Malloc(key, 4 * kMiB));
  ASSERT_TRUE(parts().private_pools.Release(kUser).has_value());
  parts().placement.ForgetPools();
  EXPECT_NE(parts().private_pools.Find(kUser), nullptr) << "it has memory";
  FreeHandles& handles = parts().free_handles;
  handles.EndRelease(handles.BeginRelease(~Bytes{0}, PoolId{}), true);
  parts().placement.ForgetPools();
  EXPECT_EQ(parts().private_pools.Find(kUser), nullptr);
  EXPECT_EQ(parts().heap.FindPool(key), nullptr);
}

TEST_F(PlacementTest, APrivatePoolStaysWhileTheDriverKeepsItsMappings) {
  parts().private_pools.Use(kUser);
  PoolKey key = Of(LifetimeClass::kTransient);
  key.owner = kUser;
  Block* const block = Malloc(key, kHandle);
  HandleRegion* const region = block->segment->region;
  const HandleRef handle{region, region->IndexOf(block->address)};
  Free(block);
  ASSERT_TRUE(parts().private_pools.Release(kUser).has_value());
  cudasim_fail("cuMemUnmap", 1, /*error=*/2, /*every=*/1);
  parts().free_handles.GiveUp({handle}, /*fenced=*/true);
  ASSERT_NE(handle.entry().physical, nullptr) << "the driver kept it mapped";
  parts().placement.ForgetPools();
  EXPECT_NE(parts().private_pools.Find(kUser), nullptr);
  EXPECT_NE(parts().heap.FindPool(key), nullptr);
  cudasim_clear_faults();
  parts().placement.ForgetPools();
  EXPECT_EQ(parts().private_pools.Find(kUser), nullptr);
  EXPECT_EQ(parts().heap.FindPool(key), nullptr);
}

}  // namespace
}  // namespace stratalloc
