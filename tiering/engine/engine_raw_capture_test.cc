// SPDX-License-Identifier: Apache-2.0
// Captures that torch did not begin: no route says so. What they use stays, and
// nothing of ours spoils them.
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "allocator/memory/external_streams.h"
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

// The first operator that is seen of it may need what is away, and room for
// that: a capture that nobody knew of forbids nothing yet.
TEST_F(EngineRawCaptureTest, ItsFirstOperatorStillFindsRoom) {
  const auto layers = Layers(2);
  EXPECT_EQ(EvictOnly(layers[0], kHandle), kHandle);
  const Address rest = Malloc(rig_->device().limit() - kHandle, kDefaultStream,
                              LifetimeClass::kTransient);
  Begin();
  Read(layers[0]);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  EXPECT_TRUE(rig_->device().MayCapture()) << "from here on it is known";
  End();
  Free(rest);
  ExpectLayers(layers);
  FreeAll(layers);
}

// Those who wait for room wait for the capture's end; who is part of it, or
// whom it waits for, must not queue behind them. Else operators do.
TEST_F(EngineRawCaptureTest, NobodyQueuesBehindThoseWhoWaitForIt) {
  for (const bool captures : {true, false}) {
    SCOPED_TRACE(captures ? "a capture" : "an operator");
    const auto layers = Layers(2);
    EXPECT_EQ(EvictOnly(layers[0], kHandle), kHandle);
    const Bytes bytes = rig_->device().limit() - kHandle;
    const Address rest = Malloc(bytes);
    std::optional<Busy> busy;  // keeps everything
    if (captures) {
      Begin();
      rig_->device().NoteCapture(stream_);
    } else {
      busy.emplace(rig_->engine(),
                   std::vector<Access>{{rest, bytes, false},
                                       {layers[1], kHandle, false}});
    }
    std::thread waits([&] {
      const Access access{layers[0], kHandle, /*written=*/false};
      const Status entered =
          rig_->engine().EnterOperator(kDefaultStream, "waits", {&access, 1});
      EXPECT_TRUE(entered.has_value()) << entered.error().message;
      if (entered) rig_->engine().LeaveOperator();
    });
    EXPECT_TRUE(Eventually([&] { return rig_->engine().IsCrowded(); }));
    const std::uint64_t stalls = Counters().stalls;
    const Access here{layers[1], kHandle, /*written=*/false};
    EXPECT_TRUE(rig_->engine()
                    .EnterOperator(kDefaultStream, "here", {&here, 1})
                    .has_value());
    EXPECT_EQ(Counters().stalls, captures ? stalls : stalls + 1);
    rig_->engine().LeaveOperator();
    if (captures) {
      End();
    } else {
      busy->Leave();
    }
    waits.join();
    Free(rest);
    ExpectLayers(layers);
    FreeAll(layers);
  }
}

}  // namespace
}  // namespace stratalloc
