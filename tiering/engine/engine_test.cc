// SPDX-License-Identifier: Apache-2.0
// The engine on the simulated device: bytes leave and return bit for bit, at
// the same address, in every way the state table allows.
#include "tiering/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// What nobody asks for memory again keeps no host memory of freed blocks.
TEST_F(EngineTest, CopiesOfFreedBlocksGoWithTheCacheAndBeforeAReport) {
  Open({});
  for (const bool empties : {true, false}) {
    const auto layers = Layers(3);
    EXPECT_EQ(Evict(), 3 * kHandle);
    FreeAll(layers);
    EXPECT_EQ(rig_->engine().HostUsed(), 3 * kHandle);
    if (empties) {
      EXPECT_TRUE(rig_->device().EmptyCache().has_value());
    } else {
      rig_->engine().CollectDropped();
    }
    EXPECT_EQ(rig_->engine().HostUsed(), 0u);
  }
}

TEST_F(EngineTest, BytesComeBackAtTheSameAddress) {
  Open({});
  const Address a = Malloc(5 * kMiB), b = Malloc(1000);
  Write(a, 5 * kMiB, 1);
  Write(b, 1000, 2);
  EXPECT_EQ(Evict(), 4 * kHandle);
  EXPECT_EQ(rig_->StateOf(a), HandleState::kHost);
  EXPECT_EQ(rig_->Check(), "");
  ExpectReads(a, 5 * kMiB, 1);
  EXPECT_EQ(rig_->StateOf(b), HandleState::kHost);
  ExpectReads(b, 1000, 2);
  EXPECT_EQ(rig_->Check(), "");
  Free(a);
  Free(b);
}

TEST_F(EngineTest, EagerModeToo) {
  Rig::Options options;
  options.async = false;
  Open(options);
  const auto layers = Layers(3);
  EXPECT_EQ(Evict(), 3 * kHandle);
  EXPECT_EQ(Restore(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ByNameMovesThatAlone) {
  Open({});
  const auto layers = Layers(3);
  EXPECT_EQ(EvictOnly(layers[1] + 100, 1), kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  EXPECT_EQ(EvictOnly(layers[1], kHandle), 0u) << "away already";
  const AddressRange range{layers[1], kHandle};
  Result<Bytes> back = rig_->engine().Restore(rig_->device(), {&range, 1});
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, kHandle);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kResident);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ByNameMoreThanFitsIsToldHowMuchCameBack) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  Evict();
  std::vector<AddressRange> all;
  for (Address layer : layers) all.push_back({layer, kHandle});
  Result<Bytes> back = rig_->engine().Restore(rig_->device(), all);
  ASSERT_FALSE(back.has_value());
  EXPECT_EQ(back.error().code, ErrorCode::kOutOfMemory);
  for (const char* word :
       {"CUDA out of memory", "12.00 MiB", "8.00 MiB came"}) {
    EXPECT_THAT(back.error().message, HasSubstr(word));
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, WhatWasNotWrittenLeavesWithoutACopy) {
  Open({});
  const auto layers = Layers(2);
  Evict();
  ExpectLayers(layers);  // restored, read
  Evict();
  EXPECT_EQ(Counters().clean_drops, 2u);
  EXPECT_EQ(cudasim_violation_count(), 0);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, AWriteAfterTheReturnMakesItDirty) {
  Open({});
  const auto layers = Layers(2);
  Evict();
  ExpectReads(layers[0], kHandle, 1);
  Write(layers[1], kHandle, 20);
  EXPECT_TRUE(rig_->UseOf(layers[1]).dirty.load());
  Evict();
  EXPECT_EQ(Counters().clean_drops, 1u);
  ExpectReads(layers[0], kHandle, 1);
  ExpectReads(layers[1], kHandle, 20);
  EXPECT_EQ(Counters().dirty_by_checksum, 0u);
  FreeAll(layers);
}

// Two tensors of one operator share a handle: it is pinned once, and what any
// of them does counts.
TEST_F(EngineTest, AHandleThatTwoTensorsShareIsPinnedOnce) {
  Open({});
  const auto layers = Layers(2);
  HandleUse& shared = rig_->UseOf(layers[0]);
  const Access accesses[] = {{layers[0], 512, false},
                             {layers[0] + 1024, 512, true},
                             {layers[0] + kHandle - 512, 1024, false},
                             {layers[0] + 512, 512, false}};
  for (const bool away : {true, false}) {
    Evict();
    if (!away) ExpectLayers(layers);
    EXPECT_EQ(shared.dirty.load(), false);
    ASSERT_TRUE(
        rig_->engine().EnterOperator(kDefaultStream, "three", accesses));
    EXPECT_TRUE(shared.dirty.load()) << away;
    EXPECT_FALSE(rig_->UseOf(layers[1]).dirty.load());
    EXPECT_GE(shared.pins.load(), 1u);
    EXPECT_EQ(rig_->UseOf(layers[1]).pins.load(), 1u);
    EXPECT_EQ(EvictOnly(layers[0], 2 * kHandle), 0u) << "both are in use";
    rig_->engine().LeaveOperator();
    EXPECT_EQ(shared.pins.load(), 0u);
    EXPECT_EQ(rig_->UseOf(layers[1]).pins.load(), 0u);
  }
  FreeAll(layers);
}

TEST_F(EngineTest, AWritePastTheGuardIsFoundByTheChecksum) {
  Open({});
  const auto layers = Layers(1);
  Evict();
  ExpectReads(layers[0], kHandle, 1);
  Rig::Fill(layers[0], kHandle, 30);  // nobody was told
  Evict();
  EXPECT_EQ(Counters().dirty_by_checksum, 1u);
  EXPECT_EQ(Counters().clean_drops, 0u);
  ExpectReads(layers[0], kHandle, 30);
  FreeAll(layers);
}

TEST_F(EngineTest, FreedWhileAwayGivesEverythingBack) {
  Open({});
  const Address a = Malloc(512), b = Malloc(3 * kMiB);
  Write(a, 512, 1);
  Write(b, 3 * kMiB, 2);
  Evict();
  EXPECT_EQ(rig_->device().Stats().allocated_bytes.stats[0].current, 0);
  Free(a);
  Free(b);
  EXPECT_EQ(rig_->Check(), "");  // also collects what was dropped
  EXPECT_EQ(rig_->engine().HostUsed(), 0u);
  EXPECT_EQ(rig_->ledger().Totals(DeviceIndex{0}).live, 0u);
  const Address again = Malloc(512);
  Write(again, 512, 3);
  Evict();
  ExpectReads(again, 512, 3);
  Free(again);
}

TEST_F(EngineTest, FreedWhileAwayTheRestOfTheHandleStays) {
  Open({});
  const Address a = Malloc(512), b = Malloc(512), c = Malloc(512);
  const Address half = Malloc(kMiB);  // so it is not brought back for its space
  Write(c, 512, 3);
  Evict();
  Free(b);
  EXPECT_EQ(rig_->Check(), "");
  const Address d = Malloc(512);
  EXPECT_NE(d, b) << "memory that is away cannot be handed out";
  ExpectReads(c, 512, 3);
  Free(a);
  Free(half);
  Free(c);
  Free(d);
}

TEST_F(EngineTest, ASideStreamWaitsForWhatReturns) {
  Open({});
  const StreamId side = rig_->NewStream();
  const auto layers = Layers(3);
  Evict();
  for (int i = 0; i < 3; ++i) {
    Result<bool> reads = rig_->Reads(layers[i], kHandle, i + 1, side);
    ASSERT_TRUE(reads.has_value());
    EXPECT_TRUE(*reads);
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
  // And the next eviction waits for that stream.
  Evict();
  EXPECT_EQ(cudasim_violation_count(), 0);
  FreeAll(layers);
}

TEST_F(EngineTest, MallocEvictsWhatIsCold) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  Open(options);
  const auto layers = Layers(14);
  EXPECT_GT(Counters().evicted_handles, 0u);
  ExpectLayers(layers);
  EXPECT_LE(cudasim_peak_used(0), 16 * kMiB);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
}

TEST_F(EngineTest, AnOperatorThatCannotFitIsToldItsBytesAndTheLimit) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  Open(options);
  const auto layers = Layers(12);
  std::vector<Access> all;
  for (Address layer : layers) all.push_back({layer, kHandle, false});
  Status status = rig_->Operate(
      kDefaultStream, all, [] {}, "aten::_foreach");
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  for (const char* word : {"aten::_foreach", "24.00 MiB", "16.00 MiB"}) {
    EXPECT_THAT(status.error().message, HasSubstr(word));
  }
  EXPECT_EQ(rig_->UseOf(layers[0]).pins.load(), 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, WhoIsRefusedForWhatOthersUseIsToldWhyOnce) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.running_ns = 20'000'000;
  Open(options);
  const auto layers = Layers(9);
  Evict();
  std::vector<Access> used;
  for (std::size_t i = 2; i < 9; ++i) used.push_back({layers[i], 512, false});
  Busy busy(rig_->engine(), used);
  const Access both{layers[0], 2 * kHandle, false};
  const Status refused = rig_->engine().EnterOperator(
      kDefaultStream, "aten::_foreach", {&both, 1});
  busy.Leave();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(
      refused.error().message,
      EndsWith("aten::_foreach needs 4.00 MiB on GPU 0 at once, in whole "
               "pages, but the limit of 16.00 MiB is reached."));
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ADriverThatFailsOnceIsAnErrorOnceAndNothingIsLost) {
  Rig::Options options;
  options.host_budget = 4 * kMiB;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  for (const char* call :
       {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventCreateWithFlags",
        "cudaStreamSynchronize", "cudaStreamWaitEvent", "cuLaunchKernel",
        "cuMemMap", "cuMemCreate", "cudaHostRegister",
        "cudaEventSynchronize"}) {
    for (long nth : {1, 2, 5}) {
      ASSERT_EQ(cudasim_fail(call, nth, 2, 0), 0);
      rig_->engine().Evict(rig_->device(), {});
      rig_->engine().Restore(rig_->device(), {});
      for (Address layer : layers) {
        rig_->Operate(kDefaultStream, {{layer, kHandle, false}}, [] {});
      }
      cudasim_clear_faults();
      ASSERT_EQ(rig_->Check(), "") << call << " " << nth;
      ExpectLayers(layers);
    }
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
  FreeAll(layers);
}

TEST_F(EngineTest, EmptyCacheUnpinsHostMemoryWithoutCopies) {
  Open({});
  const auto layers = Layers(2);
  ASSERT_EQ(Evict(), 2 * kHandle);
  rig_->engine().OnEmptyCache(DeviceIndex{0});
  EXPECT_NE(rig_->engine().HostReserved(), 0u) << "copies lie there";
  ExpectLayers(layers);
  FreeAll(layers);
  EXPECT_NE(rig_->engine().HostReserved(), 0u);
  rig_->engine().OnEmptyCache(DeviceIndex{0});
  EXPECT_EQ(rig_->engine().HostReserved(), 0u);
}

}  // namespace
}  // namespace stratalloc
