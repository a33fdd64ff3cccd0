// SPDX-License-Identifier: Apache-2.0
// Freed blocks whose streams have work, without an allocator.
#include "allocator/streams/deferred_frees.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

using Blocks = std::vector<Block*>;

class DeferredFreesTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_hold_streams(1);  // work is done when somebody waits for it
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    events_.emplace(*device_);
    frees_.emplace(*device_, *events_);
    for (cudaStream_t* stream : {&one_, &two_}) {
      ASSERT_EQ(cudaStreamCreate(stream), cudaSuccess);
    }
    ASSERT_EQ(cudaMalloc(&memory_, kMiB), cudaSuccess);
  }
  void TearDown() override {
    cudasim_clear_faults();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    for (cudaStream_t stream : {one_, two_}) {
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    frees_.reset();
    events_.reset();
    cudasim_hold_streams(0);
    cudasim_set_mode(0);
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n") << "every event was destroyed";
  }

  static StreamId Id(cudaStream_t stream) {
    return StreamId{reinterpret_cast<std::uintptr_t>(stream)};
  }
  void Work(cudaStream_t stream) {
    ASSERT_EQ(cudaMemsetAsync(memory_, 1, kMiB, stream), cudaSuccess);
  }

  std::unique_ptr<Device> device_;
  std::optional<EventPool> events_;
  std::optional<DeferredFrees> frees_;
  cudaStream_t one_ = nullptr, two_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(DeferredFreesTest, ABlockIsDoneWithItsLastStream) {
  Block block;
  block.streams = {Id(one_), Id(two_)};
  Work(one_);
  Work(two_);
  frees_->Record(&block);
  EXPECT_TRUE(block.streams.empty());
  EXPECT_EQ(block.pending_events, 2u);
  EXPECT_TRUE(frees_->pending());
  EXPECT_EQ(frees_->Collect(), Blocks{});
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(frees_->Collect(), Blocks{}) << "the other has work";
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  EXPECT_EQ(frees_->Collect(), Blocks{&block});
  EXPECT_EQ(block.pending_events, 0u);
  EXPECT_FALSE(frees_->pending());
}

TEST_F(DeferredFreesTest, EventsAreUsedAgain) {
  Block block;
  const long created = cudasim_calls("cudaEventCreateWithFlags");
  for (int i = 0; i < 3; ++i) {
    block.streams = {Id(one_)};
    frees_->Record(&block);
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    EXPECT_EQ(frees_->Collect(), Blocks{&block});
  }
  EXPECT_EQ(cudasim_calls("cudaEventCreateWithFlags"), created + 1);
}

TEST_F(DeferredFreesTest, WaitingIsForTheLastOfEachStream) {
  Block first, second;
  first.streams = second.streams = {Id(one_)};
  Work(one_);
  frees_->Record(&first);
  frees_->Record(&second);
  DeferredFrees::Wait wait = frees_->BeginWait();
  EXPECT_EQ(wait.events.size(), 1u);
  DeferredFrees::Await(*device_, &wait);
  EXPECT_TRUE(wait.status.has_value());
  EXPECT_EQ(frees_->EndWait(wait), Blocks{});
  EXPECT_EQ(frees_->Collect(), (Blocks{&first, &second}));
}

TEST_F(DeferredFreesTest, WithoutAnEventOnlyTheDeviceProvesTheEnd) {
  Block block;
  block.streams = {Id(one_)};
  ASSERT_EQ(cudasim_fail("cudaEventRecord", 1, 999, /*forever=*/0), 0);
  frees_->Record(&block);
  cudasim_clear_faults();
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(frees_->Collect(), Blocks{}) << "nothing says that it is done";
  // A device that cannot be synchronised proves nothing either.
  DeferredFrees::Wait failed = frees_->BeginWait();
  ASSERT_EQ(cudasim_fail("cudaDeviceSynchronize", 1, 999, /*forever=*/0), 0);
  DeferredFrees::Await(*device_, &failed);
  cudasim_clear_faults();
  EXPECT_FALSE(failed.status.has_value());
  EXPECT_EQ(frees_->EndWait(failed), Blocks{});
  EXPECT_TRUE(frees_->pending()) << "it waits on";
  DeferredFrees::Wait wait = frees_->BeginWait();
  EXPECT_EQ(frees_->Collect(), Blocks{}) << "taken out meanwhile";
  DeferredFrees::Await(*device_, &wait);
  EXPECT_EQ(frees_->EndWait(wait), Blocks{&block});
}

TEST_F(DeferredFreesTest, WhatWasPutOffWaitsForUsesOutsideTheCapture) {
  Block inside, outside, forgotten;
  inside.streams = {Id(one_)};
  frees_->NoteCaptured(&inside, Id(one_));
  outside.streams = {Id(one_), Id(two_)};
  frees_->NoteCaptured(&outside, Id(one_));
  Work(two_);
  frees_->PutOff(&inside);
  frees_->PutOff(&outside);
  EXPECT_TRUE(frees_->some_put_off());
  EXPECT_EQ(frees_->Redeem(), Blocks{&inside}) << "the graph keeps its memory";
  EXPECT_FALSE(frees_->some_put_off());
  EXPECT_EQ(outside.pending_events, 1u);
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  EXPECT_EQ(frees_->Collect(), Blocks{&outside});
  // A block that was given back is another one when it is next seen.
  frees_->NoteCaptured(&forgotten, Id(one_));
  frees_->Forget(&forgotten);
  forgotten.streams = {Id(one_)};
  frees_->PutOff(&forgotten);
  EXPECT_EQ(frees_->Redeem(), Blocks{});
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(frees_->Collect(), Blocks{&forgotten});
}

}  // namespace
}  // namespace stratalloc
