// SPDX-License-Identifier: Apache-2.0
// Capture: what a graph has captured runs again without a guard, so its bytes
// stay; and nothing leaves or is waited for on a stream that captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "allocator/memory/external_streams.h"
#include "tiering/engine/engine_capture_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

TEST_F(EngineCaptureTest, WhatAGraphReadsStaysUntilItsPoolIsGone) {
  const auto layers = OpenWith(3);
  const StreamId other = rig_->NewStream();
  Begin(stream_);
  Read(layers[0], stream_);
  Read(layers[0], stream_);
  Read(layers[1], other);  // does not capture
  End(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  // A replay on a stream that no guard saw, still running when the graph goes.
  const cudasim_access access{layers[0], kHandle, 0};
  cudasim_note_access(Rig::ToCuda(other), "replay", &access, 1);
  Release();
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kHost);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineCaptureTest, AFreedBlockOfAGraphIsOrdinaryMemory) {
  const auto layers = OpenWith(1);
  Begin(stream_);
  Read(layers[0], stream_);
  End(stream_);
  FreeAll(layers);
  ASSERT_TRUE(rig_->device().EmptyCache().has_value());
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kUnmapped);
  Release();
  const auto again = Layers(1);
  EXPECT_EQ(again[0], layers[0]);
  EXPECT_EQ(Evict(), kHandle);
  ExpectLayers(again);
  FreeAll(again);
}

TEST_F(EngineCaptureTest, NothingLeavesWhileAStreamCaptures) {
  const auto layers = OpenWith(2);
  Begin(stream_);
  EXPECT_EQ(Evict(), 0u);
  End(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ReleaseAndFree(layers);
}

// Of operators in place alone: its stream has no memory of its own.
TEST_F(EngineCaptureTest, NothingLeavesWhileAStreamCapturesThatNeverAllocated) {
  const auto layers = OpenWith(2);
  Read(layers[0], stream_);
  Begin(stream_, /*allocates=*/false);
  Read(layers[1], stream_);
  EXPECT_EQ(Evict(), 0u);
  End(stream_);
  EXPECT_EQ(Evict(), kHandle) << "the other is the graph's";
  ReleaseAndFree(layers);
}

// Torch sets a route and then begins its capture: an event that is recorded in
// between would be part of the graph.
TEST_F(EngineCaptureTest, NothingLeavesBetweenARouteAndItsFirstUse) {
  const auto layers = OpenWith(1);
  Route(stream_);
  Bytes elsewhere = 1;  // waits until it is known
  std::thread evicts([&] { elsewhere = Evict(); });
  StartCapture(stream_);
  evicts.join();
  EXPECT_EQ(elsewhere, 0u);
  End(stream_);
  EXPECT_EQ(Evict(), kHandle);
  ReleaseAndFree(layers);
}

// The first operator inside may need what is away, and room for it.
TEST_F(EngineCaptureTest, AMemPoolKeepsNothingFromLeaving) {
  Open({});
  const auto layers = Layers(1);
  ASSERT_TRUE(rig_->device()
                  .BeginAllocateToPool(kGraph, [](StreamId) { return true; })
                  .has_value());
  EXPECT_EQ(Evict(), kHandle);
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  ReleaseAndFree(layers);
}

// Torch takes back the route of a capture that it could end, and no other.
TEST_F(EngineCaptureTest, ACaptureThatFailedBeforeItAllocatedStopsNoEviction) {
  const auto layers = OpenWith(2);
  BeginReading(stream_, {});
  EXPECT_EQ(Evict(), 0u) << "it captures";
  Spoil(stream_);
  Bytes elsewhere = 1;
  std::thread([&] { elsewhere = Evict(); }).join();
  EXPECT_EQ(elsewhere, 0u);
  EndSpoilt(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle) << "its thread is back";
  ExpectLayers(layers);
  EXPECT_FALSE(rig_->device().MayCapture());
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  ReleaseAndFree(layers);
}

TEST_F(EngineCaptureTest, WhatACaptureKeptThatFailedLeavesAgain) {
  const auto layers = OpenWith(3);
  Begin(stream_);  // of a graph that is kept, in the same pool
  Read(layers[0], stream_);
  End(stream_);
  BeginReading(stream_, {});
  Read(layers[0], stream_);
  Read(layers[1], stream_);
  Spoil(stream_);
  EndSpoilt(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle) << "the other graph keeps what it reads";
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  ExpectLayers(layers);
  const Result<bool> ended = rig_->device().EndAllocateToPool(kGraph);
  ASSERT_FALSE(ended.has_value()) << "its graph would read what has left";
  EXPECT_THAT(ended.error().message, HasSubstr("capture again"));
  Release();
  Release();
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

// Another thread cannot tell a capture that failed from one about to begin, but
// that takes no second.
TEST_F(EngineCaptureTest, ACaptureThatFailedInAThreadThatEndedStopsNoEviction) {
  const auto layers = OpenWith(2);
  std::thread([&] {
    BeginReading(stream_, {});
    Read(layers[0], stream_);
    Spoil(stream_);
    EndSpoilt(stream_);
  }).join();
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_FALSE(rig_->device().MayCapture());
  ExpectLayers(layers);
  ASSERT_FALSE(rig_->device().EndAllocateToPool(kGraph).has_value());
  Release();
  FreeAll(layers);
}

// A stream that somebody may destroy is asked by nobody who is not on it.
TEST_F(EngineCaptureTest, AFailedCaptureOfAStreamThatIsGoneStopsNoEviction) {
  Open({});
  const auto layers = Layers(2);
  cudaStream_t raw = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking),
            cudaSuccess);
  const StreamId stream{reinterpret_cast<std::uint64_t>(raw)};
  ExternalStreams::Add(stream);
  BeginReading(stream, {});
  Read(layers[0], stream);
  EXPECT_EQ(Evict(), 0u) << "an operator ran on it";
  Spoil(stream);
  EndSpoilt(stream);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ASSERT_FALSE(rig_->device().EndAllocateToPool(kGraph).has_value());
  BeginReading(stream, {});
  Spoil(stream);
  EndSpoilt(stream);
  ASSERT_EQ(cudaStreamDestroy(raw), cudaSuccess);
  ExpectLayers(layers);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  Release();
  ReleaseAndFree(layers);
}

TEST_F(EngineCaptureTest, ARouteWaitsForTheEventsOfAnEviction) {
  Open({});
  DeviceAllocator& device = rig_->device();
  ASSERT_TRUE(device.BeginFencing());
  std::atomic<bool> begins{false};
  std::thread capture([&] {
    begins = true;
    EXPECT_TRUE(
        device.BeginAllocateToPool(kGraph, [](StreamId) { return false; })
            .has_value());
  });
  EXPECT_TRUE(Eventually([&] { return begins.load(); }));
  bool early = false;
  for (int i = 0; i < 1000; ++i) {
    early |= device.MayCapture();
    std::this_thread::yield();
  }
  EXPECT_FALSE(early);
  device.EndFencing();
  capture.join();
  EXPECT_TRUE(device.MayCapture());
  ASSERT_TRUE(device.EndAllocateToPool(kGraph).has_value());
  Release();
}

// An event from outside would spoil the capture: the copies are over before
// the operator goes on.
TEST_F(EngineCaptureTest, BytesThatAreAwayReturnBeforeTheyAreCaptured) {
  const auto layers = OpenWith(2);
  Read(layers[0], stream_);
  EXPECT_EQ(Evict(), 2 * kHandle);
  Begin(stream_);
  Read(layers[0], stream_);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  End(stream_);
  EXPECT_EQ(Evict(), 0u);
  ExpectLayers(layers);
  Release();
  FreeAll(layers);
}

// Seed and offset of a generator: filled before the capture, and no operator
// names them in it.
TEST_F(EngineCaptureTest, WhatIsReadUnnamedIsBroughtBackAndStays) {
  Open({});
  const auto layers = Layers(2);
  EXPECT_EQ(Evict(), 2 * kHandle);
  const StreamId stream = rig_->NewStream();
  const Access read{layers[0], kHandle, /*written=*/true};
  ASSERT_EQ(cudasim_stick_copy(1, 1'000'000), 0) << "until it is waited for";
  BeginReading(stream, {&read, 1});
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident)
      << "replays on other streams wait for no copy";
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  End(stream);
  EXPECT_EQ(Evict(), 0u);
  EXPECT_EQ(rig_->device().Stays().of(StayReason::kGraph), kHandle);
  Release();
  EXPECT_EQ(Evict(), kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

// There is no room for it: the capture does not begin, and nothing is left.
TEST_F(EngineCaptureTest, WhatCannotBeBroughtBackFailsBeforeTheRoute) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(2);
  EXPECT_EQ(Evict(), 2 * kHandle);
  const Address full =
      Malloc(8 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  const StreamId stream = rig_->NewStream();
  const Access read{layers[0], kHandle, /*written=*/false};
  const Status begun = rig_->engine().BeginAllocateToPool(
      rig_->device(), kGraph, [](StreamId) { return false; }, stream,
      {&read, 1});
  ASSERT_FALSE(begun.has_value());
  EXPECT_EQ(begun.error().code, ErrorCode::kOutOfMemory);
  EXPECT_FALSE(rig_->device().MayCapture());
  EXPECT_EQ(rig_->device().PoolUseCount(kGraph), 0);
  Free(full);
  ExpectLayers(layers);
  FreeAll(layers);
}

// A compiled graph's call captures what it launches without operators.
TEST_F(EngineCaptureTest, WhatOperatorsAroundACaptureUseStays) {
  const auto layers = OpenWith(3);
  const StreamId other = rig_->NewStream();
  EXPECT_EQ(Evict(), 3 * kHandle);
  const Access outer{layers[0], kHandle, false};
  const Access inner{layers[1], kHandle, false};
  ASSERT_TRUE(rig_->engine().EnterOperator(other, "call", {&outer, 1}));
  ASSERT_TRUE(rig_->engine().EnterOperator(other, "inside", {&inner, 1}));
  const Address made = Malloc(kHandle, other);
  BeginReading(stream_, {});
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  End(stream_);
  rig_->engine().LeaveOperator();
  rig_->engine().LeaveOperator();
  EXPECT_EQ(Evict(), 0u) << "what the operators used and made";
  EXPECT_EQ(rig_->StateOf(layers[2]), HandleState::kHost);
  Release();
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
  Free(made);
}

TEST_F(EngineCaptureTest, AMemPoolKeepsNothingOfTheOperatorsAroundIt) {
  Open({});
  const auto layers = Layers(1);
  const Access outer{layers[0], kHandle, false};
  ASSERT_TRUE(
      rig_->engine().EnterOperator(kDefaultStream, "call", {&outer, 1}));
  ASSERT_TRUE(rig_->engine()
                  .BeginAllocateToPool(rig_->device(), kGraph,
                                       [](StreamId) { return true; },
                                       kDefaultStream, {})
                  .has_value());
  rig_->engine().LeaveOperator();
  EXPECT_EQ(Evict(), kHandle);
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  ReleaseAndFree(layers);
}

}  // namespace
}  // namespace stratalloc
