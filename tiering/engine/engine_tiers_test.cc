// SPDX-License-Identifier: Apache-2.0
// Copies of the engine on host and disk: budgets, quotas, codecs, failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "accounting/scope_table.h"
#include "tiering/engine/engine_fixture_test.h"
#include "tiering/engine/lower_copies.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(EngineTest, AboveTheHostBudgetTheColdestGoToDisk) {
  Rig::Options options;
  options.host_budget = 6 * kMiB;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(8);
  EXPECT_EQ(Evict(), 8 * kHandle);
  EXPECT_LE(rig_->engine().HostUsed(), 6 * kMiB);
  EXPECT_GE(rig_->engine().DiskUsed(), 5 * kHandle);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  EXPECT_GT(Counters().from_disk_bytes, 0u);
  // Once more, now that some copies are still there.
  Evict();
  ExpectLayers(layers);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
}

TEST_F(EngineTest, WithoutHostMemoryTheDiskAloneServes) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.host_budget = 0;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(12);
  EXPECT_GE(rig_->engine().DiskUsed(), 4 * kHandle);
  ExpectLayers(layers);
  Evict();
  for (Address layer : layers) {
    EXPECT_EQ(rig_->StateOf(layer), HandleState::kDisk);
  }
  std::vector<std::uint64_t> seeds;
  for (std::size_t i = 0; i < layers.size(); ++i) seeds.push_back(i + 1);
  std::mt19937 random(7);
  const StreamId streams[] = {kDefaultStream, rig_->NewStream()};
  for (std::uint64_t step = 0; step < 300; ++step) {
    const std::size_t at = random() % layers.size();
    switch (random() % 8) {
      case 0:
        Evict();
        break;
      case 1:
        Restore();
        break;
      case 2:
      case 3:
        seeds[at] = 100 + step;
        Write(layers[at], kHandle, seeds[at]);
        break;
      default: {
        // Both streams are done with what the other does next.
        ASSERT_TRUE(rig_->device().device().SynchronizeDevice());
        Result<bool> reads =
            rig_->Reads(layers[at], kHandle, seeds[at], streams[random() % 2]);
        ASSERT_TRUE(reads.has_value()) << reads.error().message;
        ASSERT_TRUE(*reads) << step;
        ASSERT_TRUE(rig_->device().device().SynchronizeDevice());
      }
    }
    ASSERT_EQ(rig_->Check(), "") << step;
  }
  EXPECT_EQ(rig_->engine().HostPeak(), 0u);
  EXPECT_EQ(rig_->engine().HostReservedPeak(), 0u);
  FreeAll(layers);
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
}

TEST_F(EngineTest, LargerStagingBuffersThatCannotBeHadLeaveTheSmallerOnes) {
  Open({});
  DeviceAllocator& device = rig_->device();
  Mutex arbiter(LockRank::kArbiter);
  LowerCopies::Options options;
  options.disk_budget = 64 * kMiB;
  LowerCopies lower(options);
  ASSERT_TRUE(lower.Open(device, arbiter, 2 * kMiB));
  ASSERT_EQ(cudasim_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, 1),
            0);
  const Status refused = lower.Open(device, arbiter, 4 * kMiB);
  cudasim_clear_faults();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("two buffers of 4.00 MiB"));
  const Result<Staging::Taken> first = lower.TakeStaging();
  const Result<Staging::Taken> second = lower.TakeStaging();
  ASSERT_TRUE(first && second);
  ASSERT_NE(first->data(), second->data());
  std::memset(first->data(), 1, 2 * kMiB);  // there
  std::memset(second->data(), 2, 2 * kMiB);
}

TEST_F(EngineTest, AHostThatCannotPinIsNoBudgetThatIsSpent) {
  Open({});
  const auto layers = Layers(2);
  ASSERT_EQ(cudasim_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, 1),
            0);
  EXPECT_EQ(Evict(), 0u);
  const std::string why = rig_->engine().LastRefusal(DeviceIndex{0});
  EXPECT_THAT(why, HasSubstr("cannot pin"));
  EXPECT_THAT(why, HasSubstr("helps, and so does a disk_budget"));
  EXPECT_THAT(why, Not(HasSubstr("spent")));
  cudasim_clear_faults();
  EXPECT_EQ(Evict(), 2 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, WithoutADiskAFullHostStillSwaps) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.host_budget = 8 * kMiB;  // one of four handles is kept back
  Open(options);
  const auto layers = Layers(10);  // 7 on the device, 3 on the host: full
  EXPECT_FALSE(rig_->Malloc(2 * kHandle).has_value());
  ExpectLayers(layers);
  ExpectLayers(layers);
  // Two that are away at once, in one operator.
  std::vector<Access> away;
  for (Address layer : layers) {
    if (rig_->StateOf(layer) == HandleState::kHost) {
      away.push_back({layer, kHandle, false});
    }
  }
  ASSERT_GE(away.size(), 2u);
  ASSERT_TRUE(
      rig_->engine().EnterOperator(kDefaultStream, "two", away).has_value());
  rig_->engine().LeaveOperator();
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_LE(rig_->engine().HostUsed(), 3 * kHandle);
  FreeAll(layers);
}

TEST_F(EngineTest, WithAFullDiskTooEverythingStaysReachable) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.host_budget = 8 * kMiB;
  options.disk_budget = 8 * kMiB;
  Open(options);
  std::vector<Address> layers;
  while (auto address = rig_->Malloc(kHandle)) {
    layers.push_back(*address);
    Write(layers.back(), kHandle, layers.size());
    ASSERT_LT(layers.size(), 40u);
  }
  EXPECT_GE(layers.size(), 8u + 3 + 3)
      << "on the device, the host and the disk";
  for (int pass = 0; pass < 3; ++pass) ExpectLayers(layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Write(layers[i], kHandle, i + 1);
  }
  ExpectLayers(layers);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
}

TEST_F(EngineTest, AFullDiskStillSwapsWhereTheHostHoldsLittle) {
  for (const Bytes host : {Bytes{0}, kHandle}) {
    Rig::Options options;
    options.capacity = 16 * kMiB;
    options.host_budget = host;
    options.disk_budget = 10 * kMiB;  // one of four chunks is kept back
    Open(options);
    std::vector<Address> layers;
    Result<Address> address;
    while ((address = rig_->Malloc(kHandle))) {
      layers.push_back(*address);
      Write(layers.back(), kHandle, layers.size());
      ASSERT_LT(layers.size(), 40u);
    }
    EXPECT_THAT(address.error().message, HasSubstr("disk budget"));
    EXPECT_THAT(address.error().message,
                HasSubstr("kept back for what must return"));
    EXPECT_EQ(layers.size(), 8 + 3 + host / kHandle);
    for (int pass = 0; pass < 3; ++pass) ExpectLayers(layers);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      Write(layers[i], kHandle, i + 1);
    }
    ExpectLayers(layers);
    // All that are away at once, in one operator.
    std::vector<Access> away;
    for (Address layer : layers) {
      if (rig_->IsAway(layer, kHandle)) away.push_back({layer, kHandle, false});
    }
    EXPECT_GE(away.size(), 3u);
    ASSERT_TRUE(
        rig_->engine().EnterOperator(kDefaultStream, "all", away).has_value());
    rig_->engine().LeaveOperator();
    EXPECT_EQ(rig_->Check(), "");
    EXPECT_LE(rig_->engine().DiskUsed(), 3 * (kHandle + 4 * kKiB));
    FreeAll(layers);
    ASSERT_EQ(rig_->Close(), "");
    rig_.reset();
  }
}

TEST_F(EngineTest, CompressedMoreHasRoomOnTheDisk) {
  for (const Bytes host : {Bytes{0}, 4 * kHandle}) {
    Rig::Options options;
    options.capacity = 16 * kMiB;
    options.host_budget = host;
    options.disk_budget = 10 * kMiB;
    Open(options);
    rig_->engine().SetDiskCodec(DiskCodec::kZstd);
    const auto layers = Layers(24);
    ExpectLayers(layers);
    EXPECT_LE(rig_->engine().DiskUsed(), 10 * kMiB);
    const EngineCounters compressed = Counters();
    EXPECT_GT(compressed.stored_bytes, 0u);
    EXPECT_LT(compressed.stored_bytes, compressed.to_disk_bytes / 4);
    // At any time another one.
    rig_->engine().SetDiskCodec(DiskCodec::kOff);
    for (std::size_t i = 0; i < 4; ++i) Write(layers[i], kHandle, i + 1);
    ExpectLayers(layers);
    const EngineCounters both = Counters();
    EXPECT_GE(both.stored_bytes, compressed.stored_bytes + kHandle);
    EXPECT_EQ(rig_->Check(), "");
    FreeAll(layers);
    EXPECT_EQ(rig_->Check(), "");
    EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
    ASSERT_EQ(rig_->Close(), "");
    rig_.reset();
  }
}

TEST_F(EngineTest, WhatAChunkTakesOfTheQuotaIncludesItsHeader) {
  Rig::Options options;
  options.host_budget = 0;
  options.disk_budget = 4 * kHandle + 3 * 4 * kKiB;
  Open(options);
  const auto layers = Layers(3);
  EXPECT_EQ(Evict(), 3 * kHandle);
  EXPECT_EQ(Restore(), 3 * kHandle);
  EXPECT_EQ(rig_->engine().DiskUsed(), 3 * (kHandle + 4 * kKiB));
  const Address fourth = Malloc(kHandle);
  Write(fourth, kHandle, 9);
  // In the place of a copy that nobody needs: all but its header had room.
  EXPECT_EQ(EvictOnly(fourth, kHandle), kHandle);
  EXPECT_EQ(rig_->engine().DiskUsed(), 3 * (kHandle + 4 * kKiB));
  ExpectReads(fourth, kHandle, 9);
  ExpectLayers(layers);
  Free(fourth);
  FreeAll(layers);
}

TEST_F(EngineTest, WithoutADiskTheRestStaysAndMallocSaysWhy) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.host_budget = 4 * kMiB;
  Open(options);
  const auto layers = Layers(7);
  EXPECT_EQ(Evict(), 2 * kHandle);
  const Address b = Malloc(kHandle), c = Malloc(kHandle), d = Malloc(kHandle);
  auto refused = rig_->Malloc(kHandle);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("CUDA out of memory."));
  EXPECT_THAT(refused.error().message, HasSubstr("disk_budget"));
  Free(b);
  Free(c);
  Free(d);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ADiskThatFailsLeavesTheBytesWhereTheyAre) {
  Rig::Options options;
  options.host_budget = 2 * kMiB;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  rig_->disk_faults().FailWrites(2);
  const Bytes moved = Evict();
  EXPECT_LT(moved, 6 * kHandle);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  EXPECT_EQ(Evict(), 6 * kHandle) << "the disk works again";
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, AFlippedByteIsAnErrorThatNamesTheLayer) {
  Rig::Options options;
  options.host_budget = 0;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const ScopeId scope = InternScope("net.broken");
  auto broken =
      rig_->Malloc(kHandle, kDefaultStream, LifetimeClass::kPersistent,
                   {scope, Category::kParameter});
  ASSERT_TRUE(broken.has_value());
  Write(*broken, kHandle, 9);
  const auto layers = Layers(1);
  EXPECT_EQ(Evict(), 2 * kHandle);
  rig_->disk_faults().FlipReads(1);
  for (int i = 0; i < 2; ++i) {
    bool computed = false;
    Status status = rig_->Operate(kDefaultStream, {{*broken, 8, false}},
                                  [&] { computed = true; });
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message, HasSubstr("net.broken"));
    EXPECT_FALSE(computed);
    EXPECT_EQ(rig_->StateOf(*broken), HandleState::kPoisoned);
  }
  const AddressRange range{*broken, kHandle};
  EXPECT_FALSE(rig_->engine().Restore(rig_->device(), {&range, 1}).has_value());
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  Free(*broken);
  EXPECT_EQ(rig_->Check(), "");
  const Address again = Malloc(kHandle);
  Write(again, kHandle, 10);
  Evict();
  ExpectReads(again, kHandle, 10);
  Free(again);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
