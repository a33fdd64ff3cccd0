// SPDX-License-Identifier: Apache-2.0
// Blocks, segments and pools over handles whose states the test sets: without
// a device.
#include "allocator/heap/block_heap.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;
constexpr Address kBase = Address{1} << 40;
constexpr Bytes kRegion = 64 * kMiB;

class BlockHeapTest : public ::testing::Test {
 protected:
  BlockHeapTest() : table_(*HandleTable::At(kBase, kRegion, kHandle, kHandle)) {
    heap_.emplace(table_, stats_, history_);
  }
  ~BlockHeapTest() override {
    heap_.reset();
    table_.DropEntries();
  }

  BlockHeap& heap() { return *heap_; }
  HandleRegion& region() {
    return table_.region(/*evictable=*/true, PoolKind::kLarge);
  }
  Pool& PoolOfClass(LifetimeClass lifetime) {
    return heap().PoolOf({.lifetime = lifetime, .kind = PoolKind::kLarge});
  }
  HandleRef Handle(const Segment& segment, std::uint64_t number) {
    return {&region(), region().IndexOf(segment.base) + number};
  }
  void Set(Segment& segment, std::uint64_t from, std::uint64_t to,
           HandleState state) {
    for (std::uint64_t i = from; i < to; ++i) {
      HandleEntry& entry = Handle(segment, i).entry();
      const bool had = entry.state.load() != HandleState::kUnmapped;
      const bool has = state != HandleState::kUnmapped;
      entry.state.store(state);
      if (has && !had) heap().NoteMapped(segment, 1);
      if (had && !has) heap().NoteUnmapped(segment, 1);
    }
    heap().Refile(segment, segment.base + from * kHandle,
                  segment.base + to * kHandle);
  }
  // As a malloc does: the front of a free block is handed out.
  Block* HandOut(Block* block, Bytes size) {
    Pool& pool = *block->segment->pool;
    pool.Unfile(block);
    if (block->size > size) pool.File(heap().Split(block, size));
    block->state = BlockState::kAllocated;
    ForEachHandleOf(*block,
                    [](HandleRef handle, Bytes) { ++handle.entry().live; });
    return block;
  }
  void GiveBack(Block* block) {
    Pool& pool = *block->segment->pool;
    ForEachHandleOf(*block,
                    [](HandleRef handle, Bytes) { --handle.entry().live; });
    block->state = BlockState::kFree;
    pool.File(heap().Merge(block));
  }
  std::string Broken() {
    const char* broken = heap().CheckInvariants();
    return broken == nullptr ? "" : broken;
  }
  std::int64_t SegmentsWithMemory() { return stats_.segment.stats[0].current; }

  HandleTable table_;
  SegmentStats stats_;
  History history_;
  std::optional<BlockHeap> heap_;
};

TEST_F(BlockHeapTest, ASegmentIsOneBlockWithoutMemory) {
  Pool& pool = PoolOfClass(LifetimeClass::kTransient);
  Segment* segment = heap().AddSegment(pool, region(), 4 * kHandle);
  ASSERT_NE(segment, nullptr);
  const Block* block = heap().Find(segment->base);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->state, BlockState::kUnmapped);
  EXPECT_EQ(block->size, 4 * kHandle);
  EXPECT_TRUE(Handle(*segment, 0).entry().stays) << "of a transient pool";
  EXPECT_EQ(SegmentsWithMemory(), 0);
  EXPECT_EQ(Broken(), "");
}

TEST_F(BlockHeapTest, WhereNoAddressSpaceIsLeftThereIsNoSegment) {
  Pool& pool = PoolOfClass(LifetimeClass::kTransient);
  EXPECT_NE(heap().AddSegment(pool, region(), kRegion), nullptr);
  EXPECT_EQ(heap().AddSegment(pool, region(), kHandle), nullptr);
}

TEST_F(BlockHeapTest, FreeSpaceIsWorthWhatItsHandlesAre) {
  Pool& pool = PoolOfClass(LifetimeClass::kPersistent);
  Segment& segment = *heap().AddSegment(pool, region(), 4 * kHandle);
  Set(segment, 1, 3, HandleState::kResident);
  EXPECT_EQ(pool.free_blocks().Largest(), 2 * kHandle);
  EXPECT_EQ(pool.unmapped_blocks().size(), 2u);
  EXPECT_EQ(SegmentsWithMemory(), 1);
  EXPECT_EQ(Broken(), "");
  Set(segment, 1, 2, HandleState::kReleasing);
  EXPECT_EQ(pool.parked_blocks().size(), 1u) << "not to be handed out";
  EXPECT_EQ(pool.free_blocks().Largest(), kHandle);
  Set(segment, 1, 3, HandleState::kUnmapped);
  EXPECT_EQ(pool.unmapped_blocks().size(), 1u) << "one block again";
  EXPECT_EQ(SegmentsWithMemory(), 0);
  EXPECT_EQ(Broken(), "");
}

TEST_F(BlockHeapTest, AFreedBlockMergesWithBothNeighbours) {
  Pool& pool = PoolOfClass(LifetimeClass::kPersistent);
  Segment& segment = *heap().AddSegment(pool, region(), 2 * kHandle);
  Set(segment, 0, 2, HandleState::kResident);
  Block* first = HandOut(pool.free_blocks().Find(512), kMiB);
  Block* second = HandOut(pool.free_blocks().Find(512), kMiB);
  EXPECT_EQ(second->address, first->end());
  EXPECT_EQ(Broken(), "");
  GiveBack(first);
  EXPECT_EQ(Broken(), "");
  GiveBack(second);
  EXPECT_EQ(pool.free_blocks().Largest(), 2 * kHandle);
  EXPECT_EQ(heap().CountBlocks(segment.base, segment.end()), 1u);
  EXPECT_EQ(Broken(), "");
}

TEST_F(BlockHeapTest, ABlockIsFoundByAnyOfItsAddresses) {
  Pool& pool = PoolOfClass(LifetimeClass::kPersistent);
  Segment& segment = *heap().AddSegment(pool, region(), 2 * kHandle);
  EXPECT_EQ(heap().BlockAt(segment.base + 12345), heap().Find(segment.base));
  EXPECT_EQ(heap().BlockAt(segment.end()), nullptr);
  EXPECT_EQ(heap().BlockAt(segment.base - 1), nullptr);
  EXPECT_EQ(&heap().SegmentOf(Handle(segment, 1)), &segment);
}

TEST_F(BlockHeapTest, OfTwoPlacesTheOneThatNeedsFewerHandlesIsFound) {
  Pool& pool = PoolOfClass(LifetimeClass::kPersistent);
  Segment& first = *heap().AddSegment(pool, region(), 4 * kHandle);
  Segment& second = *heap().AddSegment(pool, region(), 4 * kHandle);
  Set(first, 0, 1, HandleState::kResident);
  Set(second, 0, 2, HandleState::kResident);
  const auto nothing = [](Address, Address) { return Address{0}; };
  Bytes needed = 0;
  EXPECT_EQ(heap().FindRun(pool, 3 * kHandle, nothing, &needed), second.base);
  EXPECT_EQ(needed, kHandle);
  // What is in the way there is walked past.
  const auto busy = [&](Address lo, Address hi) {
    const Address at = second.base + 2 * kHandle;
    return lo <= at && at < hi ? at : Address{0};
  };
  EXPECT_EQ(heap().FindRun(pool, 3 * kHandle, busy, &needed), first.base);
  EXPECT_EQ(needed, 2 * kHandle);
  EXPECT_EQ(heap().FindRun(pool, 5 * kHandle, nothing, &needed), 0u);
}

TEST_F(BlockHeapTest, AnotherClassTakesOverWholeHandlesAndGivesThemBack) {
  Pool& gradients = PoolOfClass(LifetimeClass::kGradient);
  Pool& transient = PoolOfClass(LifetimeClass::kTransient);
  Segment& segment = *heap().AddSegment(gradients, region(), 6 * kHandle);
  Set(segment, 0, 6, HandleState::kResident);
  const Address base = segment.base;  // a segment that is cut may move on
  // The first handle is partly used: it cannot change its class.
  Block* kept = HandOut(gradients.free_blocks().Find(512), kMiB);
  const BlockHeap::Run run = heap().FindTakeOver(transient, 2 * kHandle);
  EXPECT_EQ(run.lo, base + kHandle);
  EXPECT_EQ(run.bytes(), 2 * kHandle);
  EXPECT_EQ(heap().HandlesFor(transient, run), 2 * kHandle);
  heap().TakeOver(transient, run);
  EXPECT_EQ(Broken(), "");
  EXPECT_EQ(heap().segments().size(), 3u) << "cut before and behind";
  EXPECT_EQ(SegmentsWithMemory(), 3);
  Block* block = transient.free_blocks().Find(2 * kHandle);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->address, run.lo);

  const BlockHeap::Run all = heap().FindTakeOver(gradients, 5 * kHandle);
  EXPECT_EQ(all.lo, base + kMiB) << "its own rest counts too";
  heap().TakeOver(gradients, all);
  EXPECT_EQ(heap().segments().size(), 1u) << "joined again";
  EXPECT_EQ(SegmentsWithMemory(), 1);
  EXPECT_EQ(Broken(), "");
  GiveBack(kept);
  EXPECT_EQ(gradients.free_blocks().Largest(), 6 * kHandle);
  EXPECT_EQ(Broken(), "");
}

TEST_F(BlockHeapTest, WhatIsTakenOverJoinsTheNeighboursOfItsPool) {
  Pool& gradients = PoolOfClass(LifetimeClass::kGradient);
  Pool& transient = PoolOfClass(LifetimeClass::kTransient);
  Segment& segment = *heap().AddSegment(gradients, region(), 6 * kHandle);
  Set(segment, 0, 6, HandleState::kResident);
  const Address base = segment.base;
  for (const Address at : {base, base + 2 * kHandle}) {
    heap().TakeOver(transient, {at, at + 2 * kHandle});
    // In use, so that the next run begins behind it.
    HandOut(heap().BlockAt(at), 2 * kHandle);
    EXPECT_EQ(Broken(), "");
  }
  EXPECT_EQ(heap().segments().size(), 2u) << "one of each class";
  for (const Address at : {base, base + 2 * kHandle}) {
    GiveBack(heap().Find(at));
  }
  EXPECT_EQ(transient.free_blocks().Largest(), 4 * kHandle);
}

TEST_F(BlockHeapTest, SpaceWithoutMemoryIsTakenOverWhereNothingIsInTheWay) {
  Pool& gradients = PoolOfClass(LifetimeClass::kGradient);
  Pool& transient = PoolOfClass(LifetimeClass::kTransient);
  heap().AddSegment(gradients, region(), 4 * kHandle);
  EXPECT_EQ(heap().FindTakeOver(transient, kHandle).bytes(), 0u);
  const BlockHeap::BusyPlace nothing = [](Address, Address) {
    return Address{0};
  };
  EXPECT_EQ(heap().FindTakeOver(transient, kHandle, &nothing).bytes(), kHandle);
  const BlockHeap::BusyPlace busy = [](Address lo, Address) { return lo; };
  EXPECT_EQ(heap().FindTakeOver(transient, kHandle, &busy).bytes(), 0u);
}

TEST_F(BlockHeapTest, TheAddressSpaceOfASegmentThatEndsIsUsedAgain) {
  Pool& pool = PoolOfClass(LifetimeClass::kTransient);
  Segment& full = *heap().AddSegment(pool, region(), kRegion);
  Set(full, 0, 1, HandleState::kResident);
  const auto yes = [](Segment&) { return true; };
  heap().DropSegments(pool, yes);
  EXPECT_EQ(heap().segments().size(), 1u) << "it has memory";
  Set(full, 0, 1, HandleState::kUnmapped);
  heap().DropSegments(pool, [](Segment&) { return false; });
  EXPECT_EQ(heap().segments().size(), 1u) << "somebody says no";
  heap().DropSegments(pool, yes);
  EXPECT_TRUE(heap().segments().empty());
  EXPECT_NE(heap().AddSegment(pool, region(), kRegion), nullptr);
}

TEST_F(BlockHeapTest, ARecentPoolIsTheOneOfItsKey) {
  EXPECT_EQ(heap().RecentPool(StreamId{64}, LifetimeClass::kTransient,
                              PoolKind::kSmall),
            nullptr);
  Pool& pool = heap().PoolOf({.stream = StreamId{64},
                              .lifetime = LifetimeClass::kTransient,
                              .kind = PoolKind::kSmall});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(heap().RecentPool(StreamId{64}, LifetimeClass::kTransient,
                                PoolKind::kSmall),
              &pool);
    // Another key under the same hash is not taken for it.
    EXPECT_EQ(heap().RecentPool(StreamId{64 + (1 << 14)},
                                LifetimeClass::kTransient, PoolKind::kSmall),
              nullptr);
  }
}

TEST_F(BlockHeapTest, WhatIsWrongIsNamed) {
  Pool& pool = PoolOfClass(LifetimeClass::kPersistent);
  Segment& segment = *heap().AddSegment(pool, region(), 2 * kHandle);
  Set(segment, 0, 2, HandleState::kResident);
  Block* block = HandOut(pool.free_blocks().Find(512), kMiB);
  ++Handle(segment, 0).entry().live;
  EXPECT_EQ(Broken(), "live counts the blocks over a handle");
  --Handle(segment, 0).entry().live;
  ++segment.mapped;
  EXPECT_EQ(Broken(), "mapped counts handles");
  --segment.mapped;
  block->size -= 512;
  EXPECT_EQ(Broken(), "blocks of a segment are contiguous");
  block->size += 512;
  Handle(segment, 1).entry().state.store(HandleState::kReleasing);
  EXPECT_EQ(Broken(), "a cached block lies in resident handles");
  Handle(segment, 1).entry().state.store(HandleState::kResident);
  EXPECT_EQ(Broken(), "");
}

}  // namespace
}  // namespace stratalloc
