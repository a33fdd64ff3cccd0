// SPDX-License-Identifier: Apache-2.0
// What a rule keeps on the device, or off a tier below it, whoever moves it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tiering/engine/engine.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr TierRule kNoHost{.host = false};
constexpr TierRule kNoDisk{.disk = false};
constexpr TierRule kNowhere{.host = false, .disk = false};

class EngineRulesTest : public EngineTest {
 protected:
  void OpenTiers(Bytes host_budget, Bytes disk_budget,
                 Bytes capacity = 64 * kMiB) {
    Rig::Options options;
    options.capacity = capacity;
    options.host_budget = host_budget;
    options.disk_budget = disk_budget;
    options.disk_dir = testing::TempDir();
    Open(options);
  }
  Status Rule(Address address, TierRule rule) {
    const AddressRange range{address, 1};
    return rig_->engine().SetRule(rig_->device(), {&range, 1}, rule);
  }
  void Ruled(Address address, TierRule rule) {
    const Status status = Rule(address, rule);
    EXPECT_TRUE(status.has_value()) << status.error().message;
    EXPECT_EQ(rig_->Check(), "");
  }
  Bytes EvictTo(Below below, std::vector<AddressRange> ranges = {}) {
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(), ranges, below);
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    EXPECT_EQ(rig_->Check(), "");
    return moved ? *moved : 0;
  }
  Bytes KeptByRules() { return rig_->device().Stays().of(StayReason::kRule); }
  HandleState State(Address address) { return rig_->StateOf(address); }
};

TEST_F(EngineRulesTest, WhatStaysSharesNoHandleWithWhatMayLeave) {
  Open({});
  std::vector<Address> weights, biases;
  for (int i = 0; i < 40; ++i) {
    weights.push_back(Malloc(64 * kKiB));
    biases.push_back(Malloc(4 * kKiB, kDefaultStream, LifetimeClass::kStaying));
    Write(biases.back(), 4 * kKiB, static_cast<std::uint64_t>(i));
  }
  const auto handle_of = [](Address a) { return a / kHandle; };
  for (Address bias : biases) {
    EXPECT_EQ(handle_of(bias), handle_of(biases[0])) << "40 need one handle";
    for (Address weight : weights)
      EXPECT_NE(handle_of(bias), handle_of(weight));
  }
  EXPECT_EQ(KeptByRules(), 40 * 4 * kKiB);
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_EQ(EvictOnly(biases[0], 4 * kKiB), 0u);
  EXPECT_EQ(State(weights[0]), HandleState::kHost);
  EXPECT_EQ(State(biases[0]), HandleState::kResident);
  EXPECT_EQ(rig_->Check(), "");
  for (int i = 0; i < 40; ++i) {
    ExpectReads(biases[i], 4 * kKiB, static_cast<std::uint64_t>(i));
  }
  FreeAll(weights);
  FreeAll(biases);
}

TEST_F(EngineRulesTest, WhoeverNeedsRoomPassesOverWhatStays) {
  OpenTiers(64 * kMiB, 0, 16 * kMiB);
  const Address stays =
      Malloc(kHandle, kDefaultStream, LifetimeClass::kStaying);
  Write(stays, kHandle, 7);
  const Address nowhere = Malloc(kHandle);
  Write(nowhere, kHandle, 8);
  Ruled(nowhere, kNowhere);
  const auto layers = Layers(12);  // 24 MiB of the 12 that are left
  for (int round = 0; round < 2; ++round) ExpectLayers(layers);
  EXPECT_EQ(State(stays), HandleState::kResident);
  EXPECT_EQ(State(nowhere), HandleState::kResident);
  EXPECT_GT(Counters().evicted_handles, 0u);
  EXPECT_EQ(KeptByRules(), 2 * kHandle);
  // Nobody is promised what they have.
  const Address big =
      Malloc(12 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_FALSE(rig_->Malloc(kHandle, kDefaultStream, LifetimeClass::kTransient)
                   .has_value());
  EXPECT_EQ(KeptByRules(), 2 * kHandle);
  const Result<Explanation> why = rig_->device().Explain(
      {kHandle, kDefaultStream, LifetimeClass::kTransient, {}});
  ASSERT_TRUE(why.has_value()) << why.error().message;
  EXPECT_EQ(why->may_leave, 0u);
  EXPECT_THAT(rig_->device().WhyNoMore(""),
              HasSubstr("4.00 MiB kept by a rule"));
  ExpectReads(stays, kHandle, 7);
  ExpectReads(nowhere, kHandle, 8);
  EXPECT_EQ(rig_->Check(), "");
  Free(big);
  // Freed, its rule goes along.
  Free(nowhere);
  const Address next = Malloc(kHandle);
  Write(next, kHandle, 9);
  EXPECT_EQ(KeptByRules(), kHandle);
  Evict();
  EXPECT_EQ(State(next), HandleState::kHost);
  Free(next);
  Free(stays);
  FreeAll(layers);
}

TEST_F(EngineRulesTest, OffTheHostIsStraightToDiskAndBack) {
  OpenTiers(64 * kMiB, 64 * kMiB);
  const auto layers = Layers(3);
  Ruled(layers[1], kNoHost);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(Evict(), 3 * kHandle);
    EXPECT_EQ(State(layers[0]), HandleState::kHost);
    EXPECT_EQ(State(layers[1]), HandleState::kDisk);
    EXPECT_EQ(rig_->engine().HostUsed(), 2 * kHandle);
    ExpectLayers(layers);
    EXPECT_EQ(rig_->Check(), "");
  }
  EXPECT_EQ(Counters().to_disk_bytes, kHandle) << "clean drops since";
  FreeAll(layers);
}

TEST_F(EngineRulesTest, OffTheDiskIsNeverDemoted) {
  OpenTiers(4 * kHandle, 64 * kMiB);
  const auto layers = Layers(8);
  Ruled(layers[0], kNoDisk);
  Ruled(layers[1], kNoDisk);
  EvictOnly(layers[0], 2 * kHandle);
  EvictOnly(layers[1], kHandle);
  Evict();
  EXPECT_EQ(State(layers[0]), HandleState::kHost);
  EXPECT_EQ(State(layers[1]), HandleState::kHost);
  EXPECT_GT(Counters().to_disk_bytes, 0u);
  EXPECT_EQ(rig_->Check(), "");
  // More of those than the host has: they stay on the device.
  ExpectLayers(layers);
  for (Address layer : layers) Ruled(layer, kNoDisk);
  EXPECT_LE(Evict(), 4 * kHandle);
  for (Address layer : layers) EXPECT_NE(State(layer), HandleState::kDisk);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineRulesTest, AHandleGoesOnlyWhereAllInItMayGo) {
  OpenTiers(64 * kMiB, 64 * kMiB);
  const Address free = Malloc(64 * kKiB), no_host = Malloc(64 * kKiB),
                no_disk = Malloc(64 * kKiB);
  Write(free, 64 * kKiB, 1);
  Ruled(no_host, kNoHost);
  Evict();
  EXPECT_EQ(State(free), HandleState::kDisk) << "its neighbour's rule";
  ExpectReads(free, 64 * kKiB, 1);
  Ruled(no_disk, kNoDisk);
  EXPECT_EQ(Evict(), 0u) << "nowhere";
  EXPECT_EQ(KeptByRules(), 3 * 64 * kKiB);
  Free(no_host);
  Evict();
  EXPECT_EQ(State(free), HandleState::kHost);
  Free(no_disk);
  EXPECT_EQ(rig_->Check(), "");
  ExpectReads(free, 64 * kKiB, 1);
  Free(free);
}

TEST_F(EngineRulesTest, WhatLiesWhereItMayNotGoesDownOrComesBack) {
  OpenTiers(64 * kMiB, 64 * kMiB);
  const auto layers = Layers(4);
  EXPECT_EQ(Evict(), 4 * kHandle);
  Ruled(layers[0], kNoHost);
  EXPECT_EQ(State(layers[0]), HandleState::kDisk);
  Ruled(layers[0], kNoDisk);
  EXPECT_EQ(State(layers[0]), HandleState::kResident);
  Ruled(layers[1], kNowhere);
  EXPECT_EQ(State(layers[1]), HandleState::kResident);
  EXPECT_EQ(rig_->engine().HostUsed(), 2 * kHandle)
      << "what came back from the disk came by the rule before: straight";
  EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
  // Here, with a copy below that would be true.
  Restore();
  Ruled(layers[2], kNoHost);
  EXPECT_EQ(EvictOnly(layers[2], kHandle), kHandle);
  EXPECT_EQ(State(layers[2]), HandleState::kDisk);
  ExpectLayers(layers);
  Ruled(layers[1], {});
  EXPECT_EQ(Evict(), 4 * kHandle);
  EXPECT_EQ(State(layers[1]), HandleState::kHost);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineRulesTest, ARuleThatCannotBeFollowedIsNotKept) {
  OpenTiers(64 * kMiB, 64 * kMiB, 8 * kMiB);
  const auto layers = Layers(3);
  Evict();
  const Address full =
      Malloc(8 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  const Status refused = Rule(layers[0], kNowhere);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("not kept"));
  EXPECT_EQ(rig_->Check(), "");
  Free(full);
  ExpectLayers(layers);
  EXPECT_EQ(Evict(), 3 * kHandle);
  EXPECT_EQ(KeptByRules(), 0u);
  FreeAll(layers);
}

TEST_F(EngineRulesTest, WhatOnlyPartlyGoesDownDoesNot) {
  OpenTiers(64 * kMiB, 5 * kHandle);
  const Address big = Malloc(8 * kHandle);
  Write(big, 8 * kHandle, 3);
  Ruled(big, kNoDisk);
  EXPECT_EQ(Evict(), 8 * kHandle);
  const Status refused = Rule(big, kNoHost);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("not kept"));
  EXPECT_EQ(rig_->Check(), "") << "none of it is on disk";
  EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
  EXPECT_EQ(rig_->engine().HostUsed(), 8 * kHandle);
  ExpectReads(big, 8 * kHandle, 3);
  Free(big);
}

TEST_F(EngineRulesTest, TwoRangesOfOneBlockGetItsOldRuleBack) {
  OpenTiers(64 * kMiB, kHandle);  // holds no handle and its header
  const Address block = Malloc(2 * kHandle);
  Write(block, 2 * kHandle, 4);
  Evict();
  const AddressRange halves[] = {{block, kHandle}, {block + kHandle, kHandle}};
  const Status refused =
      rig_->engine().SetRule(rig_->device(), halves, kNoHost);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(rig_->Check(), "");
  ExpectReads(block, 2 * kHandle, 4);
  EXPECT_EQ(Evict(), 2 * kHandle) << "it has no rule";
  EXPECT_EQ(State(block), HandleState::kHost);
  Free(block);
}

TEST_F(EngineRulesTest, WhoKeepsItOffATierIsSaid) {
  OpenTiers(64 * kMiB, 64 * kMiB);
  const Address block = Malloc(kHandle);
  Write(block, kHandle, 5);
  const auto why = [&](TierRule rule, Below below) {
    Ruled(block, rule);
    EXPECT_EQ(EvictTo(below, {{block, kHandle}}), 0u);
    return std::string(rig_->engine().LastRefusal(DeviceIndex{0}));
  };
  EXPECT_THAT(why(kNoDisk, Below::kDisk),
              HasSubstr("was to go to disk, and a rule keeps it off the disk"));
  EXPECT_THAT(why(kNoHost, Below::kHost),
              HasSubstr("off the host, and it was to go there alone"));
  Free(block);
}

TEST_F(EngineRulesTest, ATierThatThereIsNotIsNoPlace) {
  OpenTiers(64 * kMiB, 0);
  const auto layers = Layers(2);
  Ruled(layers[0], kNoHost);
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_EQ(KeptByRules(), kHandle);
  const Result<Bytes> moved =
      rig_->engine().Evict(rig_->device(), {}, Below::kDisk);
  ASSERT_FALSE(moved.has_value());
  EXPECT_THAT(moved.error().message, HasSubstr("disk_budget"));
  FreeAll(layers);
}

TEST_F(EngineRulesTest, ByHandToOneTierAlone) {
  OpenTiers(4 * kHandle, 64 * kMiB);
  const auto layers = Layers(6);
  EXPECT_EQ(EvictTo(Below::kHost, {{layers[0], 2 * kHandle}}), 2 * kHandle);
  EXPECT_EQ(State(layers[0]), HandleState::kHost);
  EXPECT_EQ(EvictTo(Below::kDisk, {{layers[0], kHandle}}), kHandle)
      << "from the host";
  EXPECT_EQ(State(layers[0]), HandleState::kDisk);
  EXPECT_EQ(State(layers[1]), HandleState::kHost);
  EXPECT_EQ(EvictTo(Below::kDisk), 5 * kHandle) << "each once";
  for (Address layer : layers) EXPECT_EQ(State(layer), HandleState::kDisk);
  EXPECT_EQ(rig_->engine().HostUsed(), 0u);
  EXPECT_EQ(EvictTo(Below::kDisk), 0u);
  // Its chunk is true still, but there it was not asked for.
  Ruled(layers[5], kNoHost);
  ExpectReads(layers[5], kHandle, 6);
  Ruled(layers[5], {});
  EXPECT_EQ(EvictTo(Below::kHost, {{layers[5], kHandle}}), kHandle);
  EXPECT_EQ(State(layers[5]), HandleState::kHost);
  // A rule is the stronger of two.
  Ruled(layers[5], kNoDisk);
  EXPECT_EQ(EvictTo(Below::kDisk), 0u);
  EXPECT_EQ(State(layers[5]), HandleState::kHost);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineRulesTest, ChunksArePackedAsTheirBlocksAsk) {
  OpenTiers(64 * kMiB, 64 * kMiB);
  const auto layers = Layers(5);
  using Packing = TierRule::Packing;
  Ruled(layers[0], {.packing = Packing::kZstd});
  Ruled(layers[1], {.packing = Packing::kLz4});
  Ruled(layers[2], {.packing = Packing::kOff});
  std::vector<Bytes> stored;
  const auto evict = [&](Address layer) {
    const Bytes before = Counters().stored_bytes;
    EXPECT_EQ(EvictTo(Below::kDisk, {{layer, kHandle}}), kHandle);
    stored.push_back(Counters().stored_bytes - before);
  };
  for (int i = 0; i < 4; ++i) evict(layers[i]);
  rig_->engine().SetDiskCodec(DiskCodec::kLz4);
  evict(layers[4]);
  EXPECT_LT(stored[0], stored[1]) << "zstd, lz4";
  EXPECT_LT(stored[1], kHandle);
  EXPECT_EQ(stored[2], kHandle);
  EXPECT_EQ(stored[3], kHandle) << "as set: off";
  EXPECT_LT(stored[4], kHandle) << "as set: lz4";
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineRulesTest, OfTwoInAHandleThatOfTheSettingMayTakeLessTime) {
  OpenTiers(64 * kMiB, 64 * kMiB);
  const Address ruled = Malloc(64 * kKiB), as_set = Malloc(64 * kKiB);
  Write(ruled, 64 * kKiB, 1);
  Write(as_set, 64 * kKiB, 2);
  Ruled(ruled, {.packing = TierRule::Packing::kZstd});
  const auto stored = [&] {
    const Bytes before = Counters().stored_bytes;
    EXPECT_EQ(EvictTo(Below::kDisk), kHandle);
    return Counters().stored_bytes - before;
  };
  EXPECT_EQ(stored(), kHandle) << "the setting is off, which is faster";
  Free(as_set);
  Write(ruled, 64 * kKiB, 1);
  EXPECT_LT(stored(), kHandle) << "alone";
  Free(ruled);
}

// What was there compressed once is no room now.
TEST_F(EngineRulesTest, ADiskThatHoldsNothingCompressedIsNotTriedWithZstd) {
  OpenTiers(64 * kMiB, 3 * kHandle);  // two handles and their headers
  const auto layers = Layers(4);
  Ruled(layers[0], {.host = false, .packing = TierRule::Packing::kZstd});
  EXPECT_EQ(EvictOnly(layers[0], kHandle), kHandle);
  EXPECT_LT(Counters().stored_bytes, kHandle);
  Free(layers[0]);
  for (int i = 1; i < 4; ++i) Ruled(layers[i], kNoHost);
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_EQ(State(layers[3]), HandleState::kResident);
  for (int i = 1; i < 4; ++i) Free(layers[i]);
}

// Each try is a chunk's worth of zstd.
TEST_F(EngineRulesTest, AFullDiskIsTriedWithZstdUntilTheFirstRefusal) {
  OpenTiers(64 * kMiB, 4 * kHandle);
  const auto layers = Layers(4);
  Ruled(layers[0], {.host = false, .packing = TierRule::Packing::kZstd});
  for (int i = 1; i < 4; ++i) Ruled(layers[i], kNoHost);
  EXPECT_EQ(Evict(), 4 * kHandle);
  const Address noise = Malloc(kHandle), last = Malloc(kHandle);
  Write(last, kHandle, 9);
  ASSERT_TRUE(rig_->Operate(kDefaultStream, {{noise, kHandle, true}}, [&] {
    std::mt19937_64 random(1);
    for (Bytes at = 0; at < kHandle; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(Rig::View(noise) + at, &word, 8);
    }
  }));
  Ruled(noise, kNoHost);
  Ruled(last, kNoHost);
  EXPECT_EQ(Evict(), 0u) << "noise is refused, and no more is tried";
  EXPECT_EQ(EvictOnly(last, kHandle), kHandle) << "another batch";
  EXPECT_EQ(State(last), HandleState::kDisk);
  ExpectReads(last, kHandle, 9);
  for (Address layer : layers) Free(layer);
  Free(noise);
  Free(last);
}

}  // namespace
}  // namespace stratalloc
