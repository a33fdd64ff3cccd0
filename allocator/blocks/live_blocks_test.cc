// SPDX-License-Identifier: Apache-2.0
// The life of a block, step by step.
#include "allocator/blocks/live_blocks.h"

#include <gtest/gtest.h>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr auto kPending = static_cast<std::uint32_t>(SlowReason::kPendingFrees);

class LiveBlocksTest : public DevicePartsTest {
 protected:
  DeviceStats Stats() {
    DeviceStats stats{parts().stats, {}, {}, {}, {}, {}};
    parts().live.Fill(&stats);
    return stats;
  }
  std::int64_t Active() { return Stats().active_bytes.stats[0].current; }
  std::int64_t Allocated() { return Stats().allocated_bytes.stats[0].current; }
  static std::vector<std::uint32_t> LiveOn(const Segment& segment,
                                           int handles) {
    std::vector<std::uint32_t> live;
    ForEachHandleOf(segment, [&](HandleRef handle) {
      live.push_back(handle.entry().live);
    });
    live.resize(static_cast<std::size_t>(handles));
    return live;
  }
  static std::uint32_t RuledOn(const Segment& segment) {
    std::uint32_t ruled = 0;
    ForEachHandleOf(segment,
                    [&](HandleRef handle) { ruled += handle.entry().ruled; });
    return ruled;
  }
  using Live = std::vector<std::uint32_t>;
};

TEST_F(LiveBlocksTest, AHandedOutBlockIsChargedCountedAndNotedBelow) {
  parts().use_clock.store(7);
  Block* const block = Malloc(kLarge, 3 * kMiB);
  EXPECT_EQ(block->size, 3 * kMiB) << "the rest is free";
  EXPECT_EQ(Allocated(), 3 << 20);
  EXPECT_EQ(accounts_.device.on_device.load(), 3 * kMiB);
  EXPECT_EQ(block->account, &accounts_.owner);
  EXPECT_EQ(LiveOn(*block->segment, 3), (Live{1, 1, 0}));
  ForEachHandleOf(*block, [](HandleRef handle, Bytes) {
    EXPECT_TRUE(handle.entry().dirty.load());
    EXPECT_EQ(handle.entry().used_streams.load(), 1u) << "the default stream";
    EXPECT_EQ(handle.entry().last_use.load(), 7u);
  });
  Block* const second = Malloc(kLarge, kMiB);
  EXPECT_EQ(LiveOn(*block->segment, 3), (Live{1, 2, 0}));
  Free(block);
  EXPECT_EQ(LiveOn(*second->segment, 3), (Live{0, 1, 0}));
  EXPECT_EQ(accounts_.device.on_device.load(), kMiB);
  EXPECT_EQ(second->prev->state, BlockState::kFree);
  Free(second);
  EXPECT_EQ(Active(), 0);
}

TEST_F(LiveBlocksTest, RecordedStreamsKeepAFreedBlockPending) {
  const StreamId stream = NewStream();
  cudasim_hold_streams(1);
  Block* const block = Malloc(kLarge, 3 * kMiB);
  block->streams.push_back(stream);
  Work(stream);
  Free(block);
  EXPECT_EQ(block->state, BlockState::kPending);
  EXPECT_EQ(Allocated(), 0);
  EXPECT_EQ(accounts_.device.on_device.load(), 0u)
      << "nobody's, as torch counts";
  EXPECT_EQ(Active(), 3 << 20);
  EXPECT_NE(parts().slow.word() & kPending, 0u);
  parts().blocks.Process();
  EXPECT_EQ(Active(), 3 << 20) << "its stream has work";
  cudasim_hold_streams(0);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  parts().blocks.Process();
  EXPECT_EQ(Active(), 0);
  EXPECT_EQ(parts().slow.word() & kPending, 0u);
}

TEST_F(LiveBlocksTest, EmptiedBinsMergeAndCountNoMore) {
  Block* const block = Malloc(kLarge, 3 * kMiB);
  Segment& segment = *block->segment;
  Pool& pool = *segment.pool;
  // As the fast path frees it.
  parts().live.FreeAtOnce(PoolKind::kLarge, block->size, block->requested);
  block->account->Free(block->size);
  ASSERT_TRUE(pool.bins().Put(block));
  block->state = BlockState::kBinned;
  EXPECT_EQ(LiveOn(segment, 2), (Live{1, 1}));
  parts().blocks.EmptyBins();
  EXPECT_EQ(LiveOn(segment, 2), (Live{0, 0}));
  EXPECT_EQ(segment.first->size, 4 * kMiB) << "merged with the rest";
  EXPECT_EQ(segment.first->state, BlockState::kFree);
  EXPECT_EQ(accounts_.device.on_device.load(), 0u) << "it was paid back before";
}

TEST_F(LiveBlocksTest, AFreedBlockHasNoPinAndNoMark) {
  Block* const block = Malloc(kLarge, 3 * kMiB);
  Segment& segment = *block->segment;
  parts().pins.Pin(*block, PinReason::kProgram);
  block->raw = block->shared = true;
  Free(block);
  ForEachHandleOf(segment, [](HandleRef handle) {
    EXPECT_EQ(handle.entry().pins.load(), 0u);
  });
  EXPECT_FALSE(segment.first->raw || segment.first->shared ||
               segment.first->streams_noted);
}

TEST_F(LiveBlocksTest, ARuleEndsWithItsBlockThatStreamsWereRecordedOn) {
  const StreamId stream = NewStream();
  cudasim_hold_streams(1);
  Block* const block = Malloc(kLarge, 3 * kMiB);
  parts().blocks.SetRule(*block, {.host = false});
  block->streams.push_back(stream);
  Work(stream);
  Segment& segment = *block->segment;
  Free(block);
  EXPECT_EQ(RuledOn(segment), 2u) << "its bytes are there still";
  cudasim_hold_streams(0);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  parts().blocks.Process();
  EXPECT_EQ(segment.first->state, BlockState::kFree);
  EXPECT_FALSE(segment.first->rule.some()) << "the next owner has none";
  EXPECT_EQ(RuledOn(segment), 0u) << "a choice of victims looks no further";
}

TEST_F(LiveBlocksTest, APoolThatDoesNotSplitHandsOutWhole) {
  constexpr PoolId kUser{0, 1};
  parts().private_pools.Use(kUser);
  parts().private_pools.Find(kUser)->no_split = true;
  PoolKey key = kLarge;
  key.owner = kUser;
  Block* const block = Malloc(key, 3 * kMiB);
  EXPECT_EQ(block->size, 4 * kMiB) << "its segment: whole handles";
  EXPECT_EQ(block->requested, 3 * kMiB);
  Free(block);
  ASSERT_TRUE(parts().private_pools.Release(kUser).has_value());
}

TEST_F(LiveBlocksTest, WithoutAccountsNobodyPays) {
  parts().accounts.Use(nullptr);
  Block* const block = Malloc(kLarge, 3 * kMiB);
  EXPECT_EQ(block->account, nullptr);
  Free(block);
  parts().accounts.Use(&accounts_);
  EXPECT_EQ(parts().accounts.Of(kOwner), &accounts_.owner);
  EXPECT_EQ(parts().accounts.Of({ScopeId{35}, Category::kParameter}),
            &accounts_.other)
      << "another charge";
}

}  // namespace
}  // namespace stratalloc
