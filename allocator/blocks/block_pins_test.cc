// SPDX-License-Identifier: Apache-2.0
// Pins on blocks over handles whose states the test sets: without a device.
#include "allocator/blocks/block_pins.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;
constexpr Address kBase = Address{1} << 40;
constexpr Bytes kRegion = 64 * kMiB;

class BlockPinsTest : public ::testing::Test {
 protected:
  BlockPinsTest() : table_(*HandleTable::At(kBase, kRegion, kHandle, kHandle)) {
    heap_.emplace(table_, stats_, history_);
    pins_.emplace(*heap_);
  }
  ~BlockPinsTest() override {
    EXPECT_EQ(Broken(), "");
    heap_.reset();
    table_.DropEntries();
  }

  // A block of three handles and a half, in a segment of its own.
  Block& NewBlock(LifetimeClass lifetime = LifetimeClass::kPersistent) {
    HandleRegion& region = table_.region(/*evictable=*/true, PoolKind::kLarge);
    Pool& pool =
        heap_->PoolOf({.lifetime = lifetime, .kind = PoolKind::kLarge});
    Segment& segment = *heap_->AddSegment(pool, region, 4 * kHandle);
    ForEachHandleOf(segment, [](HandleRef handle) {
      handle.entry().state.store(HandleState::kResident);
    });
    heap_->NoteMapped(segment, 4);
    heap_->Refile(segment, segment.base, segment.end());
    Block* const block = segment.first;
    pool.Unfile(block);
    pool.File(heap_->Split(block, 7 * kMiB));
    block->state = BlockState::kAllocated;
    ForEachHandleOf(*block,
                    [](HandleRef handle, Bytes) { ++handle.entry().live; });
    return *block;
  }
  static std::vector<std::uint32_t> PinsOf(const Segment& segment) {
    std::vector<std::uint32_t> pins;
    ForEachHandleOf(segment, [&](HandleRef handle) {
      pins.push_back(handle.entry().pins.load());
    });
    return pins;
  }
  static bool Observed(const Block& block) {
    bool observed = true;
    ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
      observed = observed && handle.entry().used_streams.load() == 0;
    });
    return observed;
  }
  std::string Broken() {
    const char* broken = pins_->Check();
    return broken == nullptr ? "" : broken;
  }
  using Pins = std::vector<std::uint32_t>;

  HandleTable table_;
  SegmentStats stats_;
  History history_;
  std::optional<BlockHeap> heap_;
  std::optional<BlockPins> pins_;
};

TEST_F(BlockPinsTest, OnePinOnEachHandleWhileAnyReasonHolds) {
  Block& block = NewBlock();
  const BlockPin one = pins_->Pin(block.address + kHandle, PinReason::kProgram);
  const BlockPin two = pins_->Pin(block, PinReason::kCollective);
  EXPECT_EQ(PinsOf(*block.segment), (Pins{1, 1, 1, 1}));
  EXPECT_TRUE(block.streams_noted) << "its free takes the whole way";
  EXPECT_EQ(pins_->All().size(), 2u);
  EXPECT_TRUE(pins_->Unpin(one, /*unobserved=*/false));
  EXPECT_FALSE(pins_->IsPinned(one));
  EXPECT_FALSE(pins_->Unpin(one, false)) << "it was taken back";
  EXPECT_EQ(PinsOf(*block.segment), (Pins{1, 1, 1, 1}));
  EXPECT_TRUE(Observed(block));
  EXPECT_TRUE(pins_->Unpin(two, /*unobserved=*/true));
  EXPECT_EQ(PinsOf(*block.segment), (Pins{0, 0, 0, 0}));
  EXPECT_FALSE(Observed(block));
}

TEST_F(BlockPinsTest, PinsOfAReasonAreCountedButForExports) {
  Block& block = NewBlock();
  for (int i = 0; i < 2; ++i) pins_->Pin(block, PinReason::kExported);
  const BlockPin exported = pins_->Pin(block, PinReason::kExported);
  EXPECT_TRUE(pins_->Unpin(exported, false));
  EXPECT_FALSE(pins_->IsPinned(exported)) << "one will do";
  const BlockPin pin = pins_->Pin(block, PinReason::kProgram);
  pins_->Pin(block, PinReason::kProgram);
  EXPECT_TRUE(pins_->Unpin(pin, false));
  EXPECT_TRUE(pins_->IsPinned(pin)) << "the other one";
}

TEST_F(BlockPinsTest, WhatNeverLeavesNeedsNone) {
  Block& block = NewBlock(LifetimeClass::kTransient);
  EXPECT_EQ(pins_->Pin(block, PinReason::kProgram).serial, 0u);
  EXPECT_EQ(PinsOf(*block.segment), (Pins{0, 0, 0, 0}));
  EXPECT_EQ(pins_->Pin(block.end(), PinReason::kProgram).serial, 0u)
      << "nothing is allocated there";
}

TEST_F(BlockPinsTest, APinOfAFreedBlockMeansNothing) {
  Block& block = NewBlock();
  const BlockPin old = pins_->Pin(block, PinReason::kPointer);
  pins_->Drop(block);
  EXPECT_EQ(PinsOf(*block.segment), (Pins{0, 0, 0, 0}));
  EXPECT_FALSE(Observed(block)) << "who used it was not seen";
  EXPECT_EQ(Broken(), "") << "it is in no list of pointers";
  const BlockPin now = pins_->Pin(block, PinReason::kPointer);
  EXPECT_FALSE(pins_->Unpin(old, false)) << "another life of the address";
  EXPECT_TRUE(pins_->IsPinned(now));
}

TEST_F(BlockPinsTest, TheOldestPointersGo) {
  Block& first = NewBlock();
  Block& second = NewBlock(LifetimeClass::kGradient);
  const BlockPin one = pins_->Pin(first, PinReason::kPointer);
  const BlockPin two = pins_->Pin(second, PinReason::kPointer);
  EXPECT_FALSE(pins_->DropOldPointers(14 * kMiB, 2));
  EXPECT_TRUE(pins_->KeepsPointer(first.address)) << "and is the newest now";
  EXPECT_TRUE(pins_->DropOldPointers(13 * kMiB, 2));
  EXPECT_TRUE(pins_->IsPinned(one));
  EXPECT_FALSE(pins_->IsPinned(two));
  EXPECT_FALSE(Observed(second));
  EXPECT_FALSE(pins_->DropOldPointers(0, 2)) << "the last stays";
  EXPECT_TRUE(pins_->DropOldPointers(0, 0));
}

TEST_F(BlockPinsTest, ACollectiveEndsByItself) {
  Block& block = NewBlock();
  pins_->Pin(block, PinReason::kCollective);
  EXPECT_FALSE(pins_->KeepsPointer(block.address));
  pins_->Pin(block, PinReason::kProgram);
  EXPECT_TRUE(pins_->KeepsPointer(block.address));
}

}  // namespace
}  // namespace stratalloc
