// SPDX-License-Identifier: Apache-2.0
// Segments whose memory comes and goes in one piece, among the parts of a
// device that has virtual memory management and of one that has none.
#include "allocator/blocks/unmanaged_segments.h"

#include <gtest/gtest.h>

#include "allocator/requests/device_parts_fixture_test.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

constexpr PoolId kUser{0, 1};
double threshold = 0;

class UnmanagedSegmentsTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    threshold = 0;
    Settings::Get().UseCollectionThreshold([] { return threshold; });
    ASSERT_EQ(cudasim_set_virtual_memory(-1, 0), 0);
    Open();
  }
  void TearDown() override {
    DevicePartsTest::TearDown();
    EXPECT_EQ(cudasim_set_virtual_memory(-1, 1), 0);
    Settings::Get().UseCollectionThreshold(nullptr);
  }
  UnmanagedSegments& unmanaged() { return parts().unmanaged; }
  // A segment of its own.
  Block* Fetch(Bytes bytes, const PoolKey& key = kLarge) {
    const UnmanagedSegments::Fetch fetch = unmanaged().BeginFetch(key, bytes);
    EXPECT_NE(fetch.source, nullptr);
    return unmanaged().Add(parts().placement.PoolOf(key), fetch,
                           fetch.Ask().value());
  }
  void GiveUp(const std::vector<HandleRef>& handles) {
    for (HandleRef handle : handles) {
      parts().free_handles.GiveUp({handle}, /*fenced=*/true);
    }
  }
};

TEST_F(UnmanagedSegmentsTest, WhatIsFetchedCountsAgainstTheLimitAtOnce) {
  const UnmanagedSegments::Fetch fetch =
      unmanaged().BeginFetch(kLarge, 40 * kMiB);
  ASSERT_NE(fetch.source, nullptr);
  EXPECT_EQ(parts().pages.used_bytes(), 40 * kMiB);
  EXPECT_EQ(unmanaged().BeginFetch(kLarge, 30 * kMiB).source, nullptr)
      << "together they would pass it";
  unmanaged().EndFetch(fetch);
  EXPECT_EQ(parts().pages.used_bytes(), 0u);
}

TEST_F(UnmanagedSegmentsTest, ASegmentComesAndGoesWhole) {
  Block* const block = Fetch(20 * kMiB);
  const Address base = block->address;
  EXPECT_EQ(block->size, 20 * kMiB);
  EXPECT_EQ(Reserved(), 20 * kMiB);
  EXPECT_TRUE(unmanaged().some());
  EXPECT_TRUE(unmanaged().Contains(base + 20 * kMiB - 1));
  EXPECT_FALSE(unmanaged().Contains(base + 20 * kMiB));
  EXPECT_TRUE(unmanaged().TakeEmpty().empty()) << "its memory was not given up";
  GiveUp({HandleRef{block->segment->region, 0}});
  EXPECT_EQ(unmanaged().TakeEmpty().size(), 1u);
  EXPECT_EQ(Reserved(), 0u);
  EXPECT_FALSE(unmanaged().some());
  EXPECT_FALSE(unmanaged().Contains(base));
  EXPECT_EQ(cudasim_used(0), 0u);
}

TEST_F(UnmanagedSegmentsTest, TheOldestGoFirst) {
  threshold = .25;
  parts().limit.SetFraction(.9);
  Address newest = 0;
  for (int i = 0; i < 3; ++i) {
    Block* const block = Fetch(10 * kMiB);
    newest = block->address;
    parts().blocks.HandOut(block, 10 * kMiB, 10 * kMiB, kOwner);
    for (int search = 0; search < 4; ++search) unmanaged().NoteSearch();
    Free(block);
  }
  EXPECT_TRUE(unmanaged().CollectsOld());
  const Bytes above = unmanaged().AboveThreshold();
  EXPECT_EQ(above, 30 * kMiB - static_cast<Bytes>(.25 * .9 * kCard));
  const std::vector<HandleRef> old = unmanaged().Old(1);
  EXPECT_EQ(old.size(), 2u) << "those of at least average age";
  GiveUp(old);
  EXPECT_EQ(unmanaged().TakeEmpty().size(), 2u);
  EXPECT_TRUE(unmanaged().Contains(newest));
  EXPECT_EQ(unmanaged().AboveThreshold(), 0u);
  parts().limit.SetFraction(1.0);
  EXPECT_FALSE(unmanaged().CollectsOld()) << "nothing to collect for";
}

TEST_F(UnmanagedSegmentsTest, FreePartsAreCountedWhenAsked) {
  Block* const block =
      parts().blocks.HandOut(Fetch(20 * kMiB), 8 * kMiB, 8 * kMiB, kOwner);
  EXPECT_TRUE(unmanaged().MayBeInactive());
  unmanaged().CountInactive();
  EXPECT_EQ(parts().stats.inactive_split.stats[0].current, 1);
  EXPECT_EQ(parts().stats.inactive_split_bytes.stats[0].current, 12 << 20);
  Free(block);
  unmanaged().CountInactive();
  EXPECT_EQ(parts().stats.inactive_split.stats[0].current, 0);
}

TEST_F(UnmanagedSegmentsTest, APoolsOwnAllocatorComesFirst) {
  auto source = std::make_shared<const MemorySource>(MemorySource{
      [](Bytes, StreamId) -> Result<Address> { return Address{1} << 40; },
      [](Address) {}});
  parts().private_pools.Use(kUser, source);
  PoolKey key = kLarge;
  key.owner = kUser;
  EXPECT_EQ(unmanaged().SourceOf(key), source);
  EXPECT_FALSE(unmanaged().IsCudaMalloc(key));
  EXPECT_TRUE(unmanaged().IsCudaMalloc(kLarge));
  EXPECT_TRUE(unmanaged().has_all());
  ASSERT_TRUE(parts().private_pools.Release(kUser).has_value());
  parts().placement.ForgetPools();
}

TEST_F(UnmanagedSegmentsTest, WithVirtualMemoryItComesByHandles) {
  Close();
  ASSERT_EQ(cudasim_set_virtual_memory(-1, 1), 0);
  Open();
  EXPECT_EQ(unmanaged().SourceOf(kLarge), nullptr);
  EXPECT_EQ(unmanaged().BeginFetch(kLarge, kMiB).source, nullptr);
  EXPECT_FALSE(unmanaged().has_all());
  Settings::Get().UseUnmanagedSegments([] { return true; });
  PoolKey stays = kLarge;
  stays.lifetime = LifetimeClass::kTransient;
  EXPECT_TRUE(unmanaged().IsCudaMalloc(stays)) << "as the program asked";
  EXPECT_FALSE(unmanaged().IsCudaMalloc(kLarge)) << "it may leave";
  Settings::Get().UseUnmanagedSegments(nullptr);
}

}  // namespace
}  // namespace stratalloc
