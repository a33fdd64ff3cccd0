// SPDX-License-Identifier: Apache-2.0
// Captures that torch did not begin: no route says so. What they use stays, and
// nothing of ours spoils them.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "allocator/external_streams.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

class EngineRawCaptureTest : public EngineTest {
 protected:
  void SetUp() override {
    Open({});
    stream_ = rig_->NewStream();
  }
  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream_),
                                     cudaStreamCaptureModeGlobal),
              cudaSuccess);
  }
  void End() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream_), &graph), cudaSuccess)
        << "something spoiled it";
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
  }
  void Read(Address address) {
    const Access access{address, kHandle, /*written=*/false};
    const Status entered =
        rig_->engine().EnterOperator(stream_, "read", {&access, 1});
    ASSERT_TRUE(entered.has_value()) << entered.error().message;
    rig_->engine().LeaveOperator();
  }

  StreamId stream_ = kDefaultStream;
};

TEST_F(EngineRawCaptureTest, WhatItReadsStaysUntilItIsFreed) {
  const auto layers = Layers(3);
  Read(layers[1]);  // before it
  Begin();
  Read(layers[0]);
  Read(layers[0]);
  EXPECT_EQ(Evict(), 0u) << "while a stream captures";
  End();
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  EXPECT_EQ(rig_->device().Stays().of(StayReason::kGraph), kHandle);
  EXPECT_FALSE(rig_->device().MayCapture()) << "it is over";
  FreeAll(layers);
  const auto again = Layers(3);
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(again);
  FreeAll(again);
}

TEST_F(EngineRawCaptureTest, WhatIsAwayReturnsBeforeItIsCaptured) {
  const auto layers = Layers(1);
  EXPECT_EQ(Evict(), kHandle);
  Begin();
  ASSERT_EQ(cudasim_stick_copy(1, 1'000'000), 0) << "until it is waited for";
  Read(layers[0]);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  End();
  EXPECT_EQ(Evict(), 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

// No operator of it has been seen yet.
TEST_F(EngineRawCaptureTest, AnEvictionDoesNotFenceItsStream) {
  const auto layers = Layers(2);
  Read(layers[0]);
  ASSERT_EQ(cudaStreamSynchronize(Rig::ToCuda(stream_)), cudaSuccess);
  Begin();
  Bytes moved = 0;
  std::thread([&] { moved = EvictOnly(layers[0], kHandle); }).join();
  EXPECT_EQ(moved, 0u);
  EXPECT_EQ(EvictOnly(layers[1], kHandle), kHandle) << "it may still leave";
  Read(layers[0]);
  End();
  ExpectLayers(layers);
  FreeAll(layers);
}

// Its stream is known; what leaves was used on one that has turned external, so
// that the whole device would be waited for.
TEST_F(EngineRawCaptureTest, AWaitForTheDeviceDoesNotSpoilIt) {
  const auto layers = Layers(2);
  Read(layers[0]);
  ASSERT_EQ(cudaStreamSynchronize(Rig::ToCuda(stream_)), cudaSuccess);
  const StreamId other = rig_->NewStream();
  const Access access{layers[1], kHandle, false};
  ASSERT_TRUE(
      rig_->engine().EnterOperator(other, "read", {&access, 1}).has_value());
  rig_->engine().LeaveOperator();
  const Address cached = Malloc(kHandle, other);
  Free(cached);
  ExternalStreams::Add(other);
  Begin();
  EXPECT_EQ(EvictOnly(layers[1], kHandle), 0u);
  rig_->device().EmptyCache();
  End();
  EXPECT_EQ(EvictOnly(layers[1], kHandle), kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

// A graph's result may be named by no operator of the capture.
TEST_F(EngineRawCaptureTest, WhatAnOperatorMakesInItStays) {
  Begin();
  ASSERT_TRUE(rig_->engine().EnterOperator(stream_, "make", {}).has_value());
  const Address made = Malloc(kHandle, stream_);
  rig_->engine().LeaveOperator();
  End();
  EXPECT_EQ(Evict(), 0u);
  Free(made);
}

TEST_F(EngineRawCaptureTest, FreesAndMallocsDoNotSpoilIt) {
  const Address cached = Malloc(kHandle, stream_);
  Free(cached);
  const Address recorded = Malloc(kHandle);
  ASSERT_TRUE(rig_->device().RecordStream(recorded, stream_).has_value());
  Begin();
  Free(recorded);
  // Memory that only the capturing stream used is asked for elsewhere.
  const Address large = Malloc(62 * kMiB);
  Free(large);
  (void)rig_->device().EmptyCache();
  End();
  EXPECT_TRUE(rig_->device().EmptyCache().has_value());
  EXPECT_EQ(rig_->device().Stats().active_bytes.stats[0].current, 0);
}

}  // namespace
}  // namespace stratalloc
