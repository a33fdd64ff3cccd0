// SPDX-License-Identifier: Apache-2.0
// A card that others use too: once it has refused memory headroom is left to
// them, and what they take and give back is followed.
#include <gtest/gtest.h>

#include <vector>

#include "allocator/state/settings.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kCard = 256 * kMiB;
constexpr Bytes kHeadroom = 4 * kMiB;  // a 64th
constexpr Bytes kLayer = 8 * kMiB;

class EngineCardRoomTest : public EngineTest {
 protected:
  void SetUp() override { OpenCard(512 * kMiB); }
  void OpenCard(Bytes host_budget) {
    if (rig_ != nullptr) {
      EXPECT_EQ(rig_->Close(), "");
    }
    rig_.reset();
    Rig::Options options;
    options.capacity = kCard;
    options.host_budget = host_budget;
    Open(options);
  }
  void TearDown() override {
    for (Address layer : layers_) Free(layer);
    cudasim_take_memory(0, 0);
    EngineTest::TearDown();
  }
  Bytes FreeOnCard() {
    const Result<MemoryInfo> info = rig_->device().device().GetMemoryInfo();
    EXPECT_TRUE(info.has_value());
    return info ? info->free : 0;
  }
  void AddLayers(Bytes bytes) {
    for (Bytes at = 0; at < bytes; at += kLayer) {
      layers_.push_back(Malloc(kLayer));
      Write(layers_.back(), kLayer, layers_.size());
    }
  }
  // Leaves a limit that is no longer true.
  void OthersTakeAndGiveBack() {
    const Bytes before = FreeOnCard();
    cudasim_take_memory(0, before - 2 * kLayer);
    AddLayers(4 * kLayer);
    cudasim_take_memory(0, 0);
    EXPECT_LT(rig_->device().most(), kCard - before / 2);
  }
  void ExpectAll() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      ExpectReads(layers_[i], kLayer, i + 1);
    }
  }

  std::vector<Address> layers_;
};

TEST_F(EngineCardRoomTest, WhatFitsHasTheWholeCard) {
  const Bytes free = FreeOnCard();
  AddLayers(RoundDown(free, kLayer));
  EXPECT_LT(FreeOnCard(), kLayer);
  EXPECT_EQ(rig_->device().limit(), kCard);
  EXPECT_EQ(Counters().evicted_handles, 0u);
}

TEST_F(EngineCardRoomTest, WhatDoesNotFitLeavesHeadroom) {
  AddLayers(kCard + 4 * kLayer);
  EXPECT_GE(FreeOnCard(), kHeadroom);
  EXPECT_LE(rig_->device().limit(), kCard - kHeadroom);
  ExpectAll();
  EXPECT_GE(FreeOnCard(), kHeadroom);
}

TEST_F(EngineCardRoomTest, ARequestThatNeedsTheHeadroomGetsIt) {
  AddLayers(kCard + 2 * kLayer);
  const Bytes most = rig_->device().most();
  ASSERT_GT(most, rig_->device().limit());
  const Bytes all = RoundDown(most, kHandle);
  const Address whole = Malloc(all, kDefaultStream, LifetimeClass::kTransient);
  ASSERT_NE(whole, 0u);
  Free(whole);
  // And an operator: one block of everything, away and back.
  const Address block = Malloc(all);
  Write(block, all, 7);
  ExpectAll();
  ExpectReads(block, all, 7);
  Free(block);
  // Later needs ask for the headroom back.
  AddLayers(2 * kLayer);
  ExpectAll();
  EXPECT_GE(FreeOnCard(), kHeadroom);
}

TEST_F(EngineCardRoomTest, WhatOthersTakeIsFollowed) {
  AddLayers(kCard / 2);
  const Bytes others = cudasim_take_memory(0, FreeOnCard() - kLayer);
  ASSERT_GT(others, 0u);
  AddLayers(4 * kLayer);
  const Bytes limit = rig_->device().limit();
  EXPECT_LE(limit, kCard - others - kHeadroom);
  ExpectAll();
  EXPECT_GE(FreeOnCard(), kHeadroom);
  // And what they give back, though the card refuses nothing any more.
  cudasim_take_memory(0, 0);
  // The card is looked at for every 64th need, and a cycle that is known needs
  // little.
  for (int i = 0; i < 200 && rig_->device().limit() < limit + others; ++i) {
    ExpectAll();
  }
  EXPECT_GE(rig_->device().limit(), limit + others);
}

// What the limit of the last look would refuse is the reason for another.
TEST_F(EngineCardRoomTest, WhatOthersGaveBackServesALargerRequest) {
  AddLayers(kCard / 2);
  OthersTakeAndGiveBack();
  const Bytes whole = rig_->device().most() + 2 * kLayer;
  const Address all = Malloc(whole, kDefaultStream, LifetimeClass::kTransient);
  ASSERT_NE(all, 0u);
  Free(all);
  ExpectAll();
}

TEST_F(EngineCardRoomTest, WhatOthersGaveBackServesARequestBesideWhatStays) {
  AddLayers(kCard / 4);
  const Address stays =
      Malloc(kCard / 4, kDefaultStream, LifetimeClass::kTransient);
  OthersTakeAndGiveBack();
  const Bytes size = rig_->device().most() - 2 * kLayer;
  const Address beside =
      Malloc(size, kDefaultStream, LifetimeClass::kTransient);
  ASSERT_NE(beside, 0u);
  FreeAll({stays, beside});
  ExpectAll();
}

TEST_F(EngineCardRoomTest, WhatOthersGaveBackServesALargerOperator) {
  const Address block = Malloc(kCard / 2);
  Write(block, kCard / 2, 99);
  Evict();
  rig_->device().EmptyCache();
  OthersTakeAndGiveBack();
  ASSERT_LT(rig_->device().most(), kCard / 2);
  ExpectReads(block, kCard / 2, 99);
  Free(block);
  ExpectAll();
}

// What would fit if everything left, were there a place for it.
TEST_F(EngineCardRoomTest, WhatOthersGaveBackServesWhomEvictionCannot) {
  OpenCard(/*host_budget=*/4 * kLayer);
  AddLayers(kCard / 4);
  OthersTakeAndGiveBack();
  const Bytes size = RoundDown(rig_->device().most() - kLayer, kHandle);
  const Address block = Malloc(size, kDefaultStream, LifetimeClass::kTransient);
  ASSERT_NE(block, 0u);
  Free(block);
  ExpectAll();
}

// What cannot be had is refused after a look or two, not after one for each of
// the rounds in which victims are looked for.
TEST_F(EngineCardRoomTest, ARefusedOperatorLooksAtTheCardOnce) {
  AddLayers(kCard + kLayer);  // has been refused
  ExpectAll();
  const Address one = Malloc(5 * kLayer), two = Malloc(5 * kLayer);
  std::vector<BlockPin> pins(layers_.size());
  std::vector<AddressRange> stays;
  for (std::size_t i = 0; i < kCard / kLayer - 8; ++i) {
    stays.push_back({layers_[i], kLayer});
  }
  ASSERT_TRUE(rig_->engine()
                  .PinBlocks("pin()", PinReason::kProgram, stays,
                             {pins.data(), stays.size()})
                  .has_value());
  const Access both[] = {{one, 5 * kLayer, true}, {two, 5 * kLayer, true}};
  for (int i = 0; i < 3; ++i) {
    const long looks = cudasim_calls("cudaMemGetInfo");
    EXPECT_FALSE(
        rig_->engine().EnterOperator(kDefaultStream, "add", both).has_value());
    EXPECT_LE(cudasim_calls("cudaMemGetInfo") - looks, 4);
  }
  for (const BlockPin& pin : pins) rig_->engine().UnpinBlock(pin, true);
  FreeAll({one, two});
}

// The program's own limit is below what the card has: nothing more is left.
TEST_F(EngineCardRoomTest, ALimitThatTheProgramSetStaysAsItIs) {
  rig_->device().SetFraction(0.5);
  AddLayers(kCard);
  EXPECT_EQ(rig_->device().limit(), kCard / 2);
  EXPECT_EQ(rig_->device().most(), kCard / 2);
  EXPECT_FALSE(rig_->device().RaiseLimit());
  ExpectAll();
}

// Of memory that comes from cudaMalloc the driver must have what left.
TEST_F(EngineCardRoomTest, WhatLeavesMakesRoomForUnmanagedSegments) {
  AddLayers(kCard + 2 * kLayer);
  Settings::Get().UseUnmanagedSegments([] { return true; });
  std::vector<Address> activations;
  for (int i = 0; i < 4; ++i) {
    activations.push_back(
        Malloc(24 * kMiB, kDefaultStream, LifetimeClass::kTransient));
  }
  std::size_t unmanaged = 0;
  for (const SegmentView& view : rig_->device().Snapshot())
    unmanaged += view.unmanaged;
  EXPECT_EQ(unmanaged, activations.size());
  ExpectAll();
  FreeAll(activations);
  // And back: cached segments make room for what returns.
  ExpectAll();
  EXPECT_EQ(rig_->Check(), "");
  Settings::Get().UseUnmanagedSegments(nullptr);
}

}  // namespace
}  // namespace stratalloc
