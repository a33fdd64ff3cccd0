// SPDX-License-Identifier: Apache-2.0
// Small blocks that are made while handles of their pool are away: they use
// the free space in those, so that many of them lie in few handles.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kSmall = 512;
constexpr int kMany = 60;

class EngineAwaySpaceTest : public EngineTest {
 protected:
  void OpenSmall() {
    Rig::Options options;
    options.capacity = 16 * kMiB;
    Open(options);
  }
  std::size_t HandlesUnder(const std::vector<Address>& blocks, Bytes bytes) {
    std::set<Address> handles;
    HandleRegion* region = rig_->device().table().RegionOf(blocks[0]);
    for (Address block : blocks) {
      handles.insert(region->AddressOf(region->IndexOf(block)));
      handles.insert(region->AddressOf(region->IndexOf(block + bytes - 1)));
    }
    return handles.size();
  }
  void ExpectBlocks(const std::vector<Address>& blocks, Bytes bytes) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ExpectReads(blocks[i], bytes, 100 + i);
    }
  }
  // `many` blocks, `between` after each.
  template <typename F>
  std::vector<Address> Make(int many, Bytes bytes, F&& between) {
    std::vector<Address> blocks;
    for (int i = 0; i < many; ++i) {
      blocks.push_back(Malloc(bytes));
      Write(blocks.back(), bytes, static_cast<std::uint64_t>(100 + i));
      between();
    }
    return blocks;
  }
};

TEST_F(EngineAwaySpaceTest, BlocksMadeBetweenEvictionsShareAHandle) {
  Open({});
  const auto blocks = Make(kMany, kSmall, [&] { Evict(); });
  EXPECT_EQ(HandlesUnder(blocks, kSmall), 1u);
  EXPECT_EQ(rig_->engine().HostUsed(), kHandle);
  EXPECT_EQ(rig_->Check(), "");
  ExpectBlocks(blocks, kSmall);
  FreeAll(blocks);
}

TEST_F(EngineAwaySpaceTest, WhereTheDeviceIsFullToo) {
  OpenSmall();
  const auto layers = Layers(12);
  const auto blocks = Make(20, kSmall, [&] { ExpectLayers(layers); });
  EXPECT_LE(HandlesUnder(blocks, kSmall), 2u);
  EXPECT_EQ(rig_->Check(), "");
  ExpectBlocks(blocks, kSmall);
  FreeAll(blocks);
  FreeAll(layers);
}

// A third of a handle each: what is away takes no more than twice its bytes
// and the handle that is not full.
TEST_F(EngineAwaySpaceTest, WhatIsAwayTakesTwiceItsBytesAtMost) {
  Open({});
  constexpr Bytes kThird = 600 * kKiB;
  constexpr int kBlocks = 20;
  const auto blocks = Make(kBlocks, kThird, [&] { Evict(); });
  EXPECT_LE(HandlesUnder(blocks, kThird) * kHandle,
            2 * kBlocks * kThird + kHandle);
  ExpectBlocks(blocks, kThird);
  FreeAll(blocks);
}

TEST_F(EngineAwaySpaceTest, AHandleThatIsHalfFullStaysAway) {
  Open({});
  const Address first = Malloc(kMiB), second = Malloc(512 * kKiB);
  Write(first, kMiB, 1);
  Write(second, 512 * kKiB, 2);
  Evict();
  const Address third = Malloc(kSmall);
  EXPECT_TRUE(rig_->IsAway(first, kMiB)) << "2 MiB copied for 512 bytes";
  EXPECT_EQ(Counters().restored_handles, 0u);
  FreeAll({first, second, third});
}

// As everything: not before the device has refused somebody.
TEST_F(EngineAwaySpaceTest, NothingLeavesForItUnderNoPressure) {
  OpenSmall();
  const Address small = Malloc(kSmall);
  Write(small, kSmall, 1);
  Evict();
  const std::uint64_t evicted = Counters().evicted_handles;
  const std::vector<Address> layers = Layers(7);
  const StreamId other = rig_->NewStream();
  const Address last = Malloc(kHandle);
  ASSERT_TRUE(rig_->Write(last, kHandle, 8, other).has_value());
  ASSERT_EQ(cudasim_stick_copy(1, 1000), 0);  // until it is waited for
  ASSERT_TRUE(rig_->device()
                  .device()
                  .CopyOnDevice(last + kMiB, last, kMiB, other)
                  .has_value());
  ASSERT_TRUE(rig_->device().RecordStream(last, other).has_value());
  Free(last);  // what the next malloc needs, once `other` is done
  const Address another = Malloc(kSmall);
  EXPECT_EQ(Counters().evicted_handles, evicted);
  EXPECT_FALSE(rig_->engine().UnderPressure(DeviceIndex{0}));
  ExpectLayers(layers);
  FreeAll(layers);
  FreeAll({small, another});
}

TEST_F(EngineAwaySpaceTest, AnotherClassHasItsOwn) {
  Open({});
  const Address first = Malloc(kSmall);
  Write(first, kSmall, 1);
  Evict();
  const Address second =
      Malloc(kSmall, kDefaultStream, LifetimeClass::kGradient);
  EXPECT_TRUE(rig_->IsAway(first, kSmall));
  FreeAll({first, second});
}

TEST_F(EngineAwaySpaceTest, WhereItDoesNotComeAnotherIsOpened) {
  Open({});
  const Address first = Malloc(kSmall);
  Write(first, kSmall, 1);
  Evict();
  constexpr int kInvalidValue = 1;
  ASSERT_EQ(cudasim_fail("cudaMemcpyAsync", 1, kInvalidValue, /*every=*/1), 0);
  const Result<Address> second = rig_->Malloc(kSmall);
  cudasim_clear_faults();
  ASSERT_TRUE(second.has_value()) << second.error().message;
  EXPECT_EQ(HandlesUnder({first, *second}, kSmall), 2u);
  EXPECT_EQ(rig_->Check(), "");
  ExpectReads(first, kSmall, 1);
  FreeAll({first, *second});
}

}  // namespace
}  // namespace stratalloc
