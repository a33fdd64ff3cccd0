// SPDX-License-Identifier: Apache-2.0
// Uses, routes and operands of private pools, without a block.
#include "allocator/streams/private_pools.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0}, kUser{0, 1};
constexpr std::uint64_t kGraphStreams = std::uint64_t{1}
                                        << StreamTable::kGraphBit;

class PrivatePoolsTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    device_ = std::make_unique<const Device>(*Device::Open(DeviceIndex{0}));
    routes_ = std::make_unique<PoolRoutes>(*device_);
    pools_.emplace(*device_, *routes_);
    ASSERT_EQ(cudaStreamCreateWithFlags(&raw_, cudaStreamNonBlocking),
              cudaSuccess);
    stream_ = StreamId{reinterpret_cast<std::uint64_t>(raw_)};
  }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(raw_), cudaSuccess); }
  void BeginCapture() {
    ASSERT_EQ(cudaStreamBeginCapture(raw_, cudaStreamCaptureModeRelaxed),
              cudaSuccess);
  }
  void EndCapture() {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(raw_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  // As torch's capture_begin does: route, then capture.
  Status Route(PoolId id) {
    return pools_->BeginRoute(
        id,
        [this](StreamId asked) {
          return asked == stream_ && device_->IsCapturing(stream_);
        },
        stream_, /*captures=*/true);
  }
  void CaptureInto(PoolId id) {
    ASSERT_TRUE(Route(id).has_value());
    BeginCapture();
  }

  std::unique_ptr<const Device> device_;
  std::unique_ptr<PoolRoutes> routes_;
  std::optional<PrivatePools> pools_;
  cudaStream_t raw_ = nullptr;
  StreamId stream_{};
  HandleUse one_, two_;
};

TEST_F(PrivatePoolsTest, APoolIsInUseUntilItsLastUseIsGivenUp) {
  EXPECT_FALSE(pools_->Release(kUser).has_value());
  pools_->Use(kUser);
  pools_->Use(kUser);
  EXPECT_TRUE(pools_->IsInUse(kUser));
  EXPECT_TRUE(pools_->Release(kUser).has_value());
  EXPECT_TRUE(pools_->IsInUse(kUser));
  EXPECT_TRUE(pools_->Release(kUser).has_value());
  EXPECT_FALSE(pools_->IsInUse(kUser));
  const Status again = pools_->Release(kUser);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().message, "Could not find pool of id {0, 1}");
  EXPECT_FALSE(pools_->IsInUse(PoolId{})) << "everybody's";
}

TEST_F(PrivatePoolsTest, OnlyWhatHasNoUseIsForgotten) {
  pools_->Use(kUser);
  pools_->Use(kGraph);
  ASSERT_TRUE(pools_->Release(kGraph).has_value());
  pools_->Forget([](PoolId) { return false; });
  EXPECT_NE(pools_->Find(kGraph), nullptr) << "it has memory";
  pools_->Forget([](PoolId) { return true; });
  EXPECT_EQ(pools_->Find(kGraph), nullptr);
  EXPECT_NE(pools_->Find(kUser), nullptr);
}

TEST_F(PrivatePoolsTest, ARouteIsSetOnceAndSendsWhatItsFilterAccepts) {
  ASSERT_TRUE(Route(kGraph).has_value());
  EXPECT_FALSE(Route(kGraph).has_value());
  EXPECT_EQ(pools_->RouteOf(stream_), PoolId{}) << "it does not capture yet";
  BeginCapture();
  EXPECT_EQ(pools_->RouteOf(stream_), kGraph);
  EXPECT_EQ(pools_->RouteOf(StreamId{8}), PoolId{});
  EndCapture();
  EXPECT_TRUE(pools_->EndRoute(kGraph).has_value());
  EXPECT_FALSE(pools_->EndRoute(kGraph).has_value());
  EXPECT_TRUE(pools_->IsInUse(kGraph)) << "the graph's use remains";
}

TEST_F(PrivatePoolsTest, OnlyStreamsWithMemoryHereAreAskedWhetherTheyCapture) {
  ASSERT_TRUE(Route(kGraph).has_value());
  BeginCapture();
  EXPECT_FALSE(pools_->Capturing());
  pools_->NoteStream(stream_);
  EXPECT_TRUE(pools_->Capturing());
  EndCapture();
  EXPECT_FALSE(pools_->Capturing());
}

TEST_F(PrivatePoolsTest, AnOperandIsPinnedOnceUntilThePoolHasNoUse) {
  HandleUse* const operands[] = {&one_, &two_};
  EXPECT_FALSE(pools_->KeepForGraph(stream_, operands)) << "no capture";
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EXPECT_EQ(one_.pins.load(), 1u);
  EXPECT_EQ(pools_->Operands().size(), 2u);
  EndCapture();
  EXPECT_TRUE(pools_->EndRoute(kGraph).has_value());
  EXPECT_EQ(one_.pins.load(), 1u) << "the graph runs again";
  EXPECT_TRUE(pools_->Release(kGraph).has_value());
  EXPECT_EQ(one_.pins.load(), 0u);
  EXPECT_EQ(one_.used_streams.load(), kGraphStreams) << "and may still run";
}

TEST_F(PrivatePoolsTest, AFailedCaptureKeepsNothing) {
  HandleUse* const operands[] = {&one_};
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EndCapture();
  // Torch up to 2.12 ends no route whose capture it could not end. Its own
  // thread is here again, so it is over.
  pools_->Settle();
  EXPECT_EQ(one_.pins.load(), 0u);
  EXPECT_FALSE(pools_->IsInUse(kGraph)) << "its use counts no more";
  const Result<bool> late = pools_->EndRoute(kGraph);
  ASSERT_FALSE(late.has_value());
  EXPECT_NE(late.error().message.find("capture again"), std::string::npos);
  EXPECT_TRUE(pools_->IsInUse(kGraph)) << "torch still holds it";
}

class FailedCaptureTest : public PrivatePoolsTest {
 protected:
  // Leaves this thread with the error of a capture that it spoilt.
  void EndSpoilt() {
    EXPECT_NE(cudaStreamSynchronize(raw_), cudaSuccess) << "spoils it";
    cudaGetLastError();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(raw_, &graph),
              cudaErrorStreamCaptureInvalidated);
  }
  bool EndMade(PoolId id, bool error_unread = true) {
    const Result<bool> made = pools_->EndRoute(id, error_unread);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return made.value_or(false);
  }
};

TEST_F(FailedCaptureTest, RouteThatEndsWithUnreadErrorDropsItsOwnOperands) {
  HandleUse *const before[] = {&one_}, *const in_failed[] = {&one_, &two_};
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, before));
  EndCapture();
  EXPECT_TRUE(EndMade(kGraph));
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, in_failed));
  EndSpoilt();
  EXPECT_FALSE(EndMade(kGraph));
  EXPECT_EQ(one_.pins.load(), 1u) << "of the first graph";
  EXPECT_EQ(two_.pins.load(), 0u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated) << "is kept";
}

TEST_F(FailedCaptureTest, RouteThatWasOverHasNoErrorOfItsOwn) {
  HandleUse* const operands[] = {&one_};
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EndSpoilt();
  pools_->Settle();
  EXPECT_EQ(one_.pins.load(), 0u);
  EXPECT_FALSE(EndMade(kGraph)) << "and torch reads the capture's error";
  EXPECT_EQ(one_.pins.load(), 0u);
  EXPECT_TRUE(pools_->Release(kGraph).has_value());
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FailedCaptureTest, ErrorFromBeforeTheRouteKeepsTheOperands) {
  HandleUse* const operands[] = {&one_};
  BeginCapture();
  EndSpoilt();
  CaptureInto(kGraph);  // the error is unread
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EndCapture();
  EXPECT_TRUE(EndMade(kGraph));
  EXPECT_EQ(one_.pins.load(), 1u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FailedCaptureTest, ErrorOfAnotherThreadKeepsTheOperands) {
  HandleUse* const operands[] = {&one_};
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EndCapture();
  std::thread([&] {
    cudaStream_t own = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking),
              cudaSuccess);
    std::swap(own, raw_);
    BeginCapture();
    EndSpoilt();
    std::swap(own, raw_);
    EXPECT_TRUE(EndMade(kGraph));
    ASSERT_EQ(cudaStreamDestroy(own), cudaSuccess);
  }).join();
  EXPECT_EQ(one_.pins.load(), 1u);
}

TEST_F(FailedCaptureTest, CallerThatReadsTheErrorFirstKeepsTheOperands) {
  HandleUse* const operands[] = {&one_};
  CaptureInto(kGraph);
  EXPECT_TRUE(pools_->KeepForGraph(stream_, operands));
  EndSpoilt();
  EXPECT_TRUE(EndMade(kGraph, /*error_unread=*/false));
  EXPECT_EQ(one_.pins.load(), 1u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(PrivatePoolsTest, APoolThatIsToBeCapturedIntoKeepsOperands) {
  HandleUse* const operands[] = {&one_};
  EXPECT_FALSE(pools_->KeepForPool(kUser, operands));
  pools_->Use(kUser);
  EXPECT_TRUE(pools_->KeepForPool(kUser, operands));
  EXPECT_EQ(one_.pins.load(), 1u);
  EXPECT_TRUE(pools_->Release(kUser).has_value());
  EXPECT_EQ(one_.pins.load(), 0u);
}

TEST_F(PrivatePoolsTest, WhatACaptureOfOthersUsedStaysUntilItIsFreed) {
  pools_->KeepUntilFreed(one_);
  pools_->KeepUntilFreed(one_);
  EXPECT_EQ(one_.pins.load(), 1u);
  EXPECT_TRUE(pools_->Operands().contains(&one_));
  pools_->DropFreed(two_);
  EXPECT_EQ(two_.pins.load(), 0u) << "was not kept";
  pools_->DropFreed(one_);
  EXPECT_EQ(one_.pins.load(), 0u);
  EXPECT_EQ(one_.used_streams.load(), kGraphStreams);
}

}  // namespace
}  // namespace stratalloc
