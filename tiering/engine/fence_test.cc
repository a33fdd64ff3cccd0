// SPDX-License-Identifier: Apache-2.0
// Fence: the streams it waits for, by which call, and the return of its events.
#include "tiering/engine/fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "allocator/memory/external_streams.h"
#include "tiering/engine/leave_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

class FenceTest : public LeaveFixture {
 protected:
  void SetUp() override {
    Open(/*capacity=*/16 * kMiB, /*host_budget=*/16 * kMiB);
    page_ = Malloc(1);
    other_page_ = Malloc(2);
    stream_ = NewStream();
    other_ = NewStream();
    cudasim_hold_streams(1);
  }
  Result<std::shared_ptr<const Fence>> Record(std::uint64_t streams) {
    return Fence::Record(all_, *allocator_, streams,
                         allocator_->streams().MayAsk(streams));
  }
  std::shared_ptr<const Fence> Recorded(std::uint64_t streams) {
    auto fence = Record(streams);
    EXPECT_TRUE(fence.has_value()) << fence.error().message;
    return fence ? *fence : nullptr;
  }
  static void Run(StreamId stream) {
    cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(Raw(stream)));
  }
  static bool IsDone(const Fence& fence) {
    const Result<bool> done = fence.IsDone();
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return done.value_or(false);
  }
  static long DeviceWaits() { return cudasim_calls("cudaDeviceSynchronize"); }
  static long EventsMade() { return cudasim_calls("cudaEventCreateWithFlags"); }

  HandleRef page_, other_page_;
  StreamId stream_{}, other_{};
};

TEST_F(FenceTest, NoStreamIsDoneAtOnce) {
  const long waits = DeviceWaits();
  EXPECT_TRUE(IsDone(*Recorded(0)));
  EXPECT_EQ(DeviceWaits(), waits);
}

TEST_F(FenceTest, IsDoneOnceEachOfItsStreamsIs) {
  EnqueueOn(stream_, page_);
  EnqueueOn(other_, other_page_);
  const auto fence = Recorded(BitOf(stream_) | BitOf(other_));
  EXPECT_FALSE(IsDone(*fence));
  Run(stream_);
  EXPECT_FALSE(IsDone(*fence)) << "the other has not run";
  Run(other_);
  EXPECT_TRUE(IsDone(*fence));
}

TEST_F(FenceTest, WorkOfOtherStreamsIsNotWaitedFor) {
  EnqueueOn(other_, other_page_);
  const auto fence = Recorded(BitOf(stream_));
  Run(stream_);
  EXPECT_TRUE(IsDone(*fence));
}

TEST_F(FenceTest, WorkEnqueuedLaterIsNotWaitedFor) {
  const auto fence = Recorded(BitOf(stream_));
  EnqueueOn(stream_, page_);
  ASSERT_GE(cudasim_run_stream(reinterpret_cast<void*>(Raw(stream_)), 1), 1);
  EXPECT_TRUE(IsDone(*fence));
}

TEST_F(FenceTest, WaitRunsItsStreams) {
  EnqueueOn(stream_, page_);
  const auto fence = Recorded(BitOf(stream_));
  EXPECT_FALSE(IsDone(*fence));
  EXPECT_TRUE(fence->Wait().has_value());
  EXPECT_TRUE(IsDone(*fence));
}

TEST_F(FenceTest, DoneFenceAsksNothingMore) {
  const auto fence = Recorded(BitOf(stream_));
  Run(stream_);
  ASSERT_TRUE(IsDone(*fence));
  const long asked = cudasim_calls("cudaEventQuery");
  EXPECT_TRUE(IsDone(*fence));
  EXPECT_EQ(cudasim_calls("cudaEventQuery"), asked);
}

TEST_F(FenceTest, QueryThatFailsIsAnError) {
  const auto fence = Recorded(BitOf(stream_));
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorUnknown, 0), 0);
  EXPECT_FALSE(fence->IsDone().has_value());
  Run(stream_);
  EXPECT_TRUE(IsDone(*fence)) << "one failure is not for ever";
}

// A thread that waits, looks and waits again would not end.
TEST_F(FenceTest, WaitThatFailsIsTheAnswerFromThenOn) {
  const auto fence = Recorded(BitOf(stream_));
  ASSERT_EQ(cudasim_fail("cudaEventSynchronize", 1, cudaErrorUnknown, 0), 0);
  EXPECT_FALSE(fence->Wait().has_value());
  EXPECT_FALSE(fence->IsDone().has_value());
}

TEST_F(FenceTest, OverflowBitWaitsForTheDevice) {
  EnqueueOn(other_, other_page_);
  const long waits = DeviceWaits();
  const auto fence =
      Recorded(std::uint64_t{1} << StreamTable::kOverflowBit | BitOf(stream_));
  EXPECT_EQ(DeviceWaits(), waits + 1);
  EXPECT_TRUE(IsDone(*fence));
}

TEST_F(FenceTest, GraphBitWaitsForTheDevice) {
  EnqueueOn(other_, other_page_);
  const long waits = DeviceWaits();
  EXPECT_TRUE(IsDone(*Recorded(std::uint64_t{1} << StreamTable::kGraphBit)));
  EXPECT_EQ(DeviceWaits(), waits + 1);
}

TEST_F(FenceTest, DestroyedStreamWaitsForTheDevice) {
  const std::uint64_t bit = BitOf(stream_);
  allocator_->device().DestroyStream(stream_);
  std::erase(streams_, stream_);
  EnqueueOn(other_, other_page_);
  const long waits = DeviceWaits();
  EXPECT_TRUE(Record(bit).has_value());
  EXPECT_EQ(DeviceWaits(), waits + 1);
  cudasim_clear_violations();  // a real driver answers with an error
}

TEST_F(FenceTest, StreamThatTurnedExternalIsNotAsked) {
  const std::uint64_t bit = BitOf(stream_);
  const std::uint64_t may_ask = allocator_->streams().MayAsk(bit);
  ExternalStreams::Add(stream_);
  const auto refused = Fence::Record(all_, *allocator_, bit, may_ask);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  const long waits = DeviceWaits();
  EXPECT_TRUE(IsDone(*Recorded(bit)));
  EXPECT_EQ(DeviceWaits(), waits + 1) << "the device was asked instead";
  ExternalStreams::NoteLasting(stream_);
}

TEST_F(FenceTest, StreamThatCapturesIsRefused) {
  const auto captured = reinterpret_cast<cudaStream_t>(Raw(stream_));
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  const auto refused = Record(BitOf(stream_));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr(kCapturedNow));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(FenceTest, WithoutAnEventTheDeviceIsWaitedFor) {
  EnqueueOn(stream_, page_);
  ASSERT_EQ(
      cudasim_fail("cudaEventCreateWithFlags", 1, cudaErrorMemoryAllocation, 1),
      0);
  const long waits = DeviceWaits();
  EXPECT_TRUE(IsDone(*Recorded(BitOf(stream_))));
  EXPECT_EQ(DeviceWaits(), waits + 1);
  const auto after = Fence::After(*allocator_, state_.copy_out);
  cudasim_clear_faults();
  ASSERT_TRUE(after.has_value());
  EXPECT_TRUE(IsDone(**after));
}

TEST_F(FenceTest, AfterFollowsOneStream) {
  EnqueueOn(stream_, page_);
  EnqueueOn(other_, other_page_);
  const auto fence = Fence::After(*allocator_, stream_);
  ASSERT_TRUE(fence.has_value());
  EXPECT_FALSE(IsDone(**fence));
  Run(stream_);
  EXPECT_TRUE(IsDone(**fence));
}

TEST_F(FenceTest, EventsGoBackToThePool) {
  const std::uint64_t both = BitOf(stream_) | BitOf(other_);
  (void)Recorded(both);
  const long made = EventsMade();
  for (int i = 0; i < 10; ++i) (void)Recorded(both);
  EXPECT_EQ(EventsMade(), made);
  const auto kept = Recorded(both), more = Recorded(both);
  EXPECT_EQ(EventsMade(), made + 2) << "two are in use";
}

}  // namespace
}  // namespace stratalloc
