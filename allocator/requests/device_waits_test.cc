// SPDX-License-Identifier: Apache-2.0
// What waits for the device without its lock.
#include "allocator/requests/device_waits.h"

#include <gtest/gtest.h>

#include <optional>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

class DeviceWaitsTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    waits_.emplace(parts());
  }
  // A driver that is not ready for so many calls.
  Status Ask(int busy) {
    return waits_->WhenReady([&]() -> Status {
      ++calls_;
      if (busy-- > 0) return Fail(ErrorCode::kNotReady, "busy");
      return {};
    });
  }
  std::uint64_t Releases() {
    MutexLock lock(parts().mutex);
    return waits_->releases();
  }

  std::optional<DeviceWaits> waits_;
  int calls_ = 0;
};

TEST_F(DeviceWaitsTest, ADriverIsAskedAgainUntilItIsReady) {
  const StreamId stream = NewStream();
  Work(stream);
  EXPECT_TRUE(Ask(/*busy=*/2).has_value());
  EXPECT_EQ(calls_, 3);
  EXPECT_TRUE(parts().device.IsIdle(stream)) << "its work was waited for";
}

TEST_F(DeviceWaitsTest, AnAnswerThatDoesNotEndIsAnError) {
  const Status status = Ask(/*busy=*/1000);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_EQ(status.error().message, "busy, 101 times in a row");
  EXPECT_EQ(calls_, 101);
}

// As on WSL2 while other threads work.
TEST_F(DeviceWaitsTest, DriverThatIsBusyAHundredTimesIsReadyThen) {
  EXPECT_TRUE(Ask(/*busy=*/100).has_value());
}

// Not ready may stand for memory that the host cannot make resident.
TEST_F(DeviceWaitsTest, DriverThatLacksMemoryGetsWhatIsFree) {
  Free(Malloc(kLarge, 6 * kMiB));
  ASSERT_GT(Reserved(), 0u);
  EXPECT_TRUE(Ask(/*busy=*/101).has_value());
  EXPECT_EQ(Reserved(), 0u);
}

TEST_F(DeviceWaitsTest, CachedMemoryGoesBackAfterItsStreams) {
  const StreamId stream = NewStream();
  PoolKey key = kLarge;
  key.stream = stream;
  Free(Malloc(key, 6 * kMiB));
  cudasim_hold_streams(1);
  Work(stream);
  EXPECT_EQ(waits_->ReleaseCached(3 * kMiB), 2 * kHandle);
  EXPECT_TRUE(parts().device.IsIdle(stream));
  EXPECT_EQ(Releases(), 1u);
  EXPECT_EQ(Reserved(), kHandle);
  EXPECT_EQ(waits_->GiveToDriver(), 3 * kHandle);
  EXPECT_EQ(Reserved(), 0u);
  EXPECT_EQ(waits_->ReleaseCached(1), 0u) << "there is nothing";
}

TEST_F(DeviceWaitsTest, NothingWaitsWhileAStreamCaptures) {
  Free(Malloc(kLarge, 6 * kMiB));
  const StreamId stream = NewStream();
  ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  ASSERT_TRUE(parts().captures.Note(stream));
  EXPECT_EQ(waits_->ReleaseCached(~Bytes{0}), 0u);
  EXPECT_TRUE(waits_->SynchronizePendingFrees().has_value());
  EXPECT_EQ(parts().stats.num_sync_all_streams, 0);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(waits_->ReleaseCached(~Bytes{0}), 3 * kHandle);
}

TEST_F(DeviceWaitsTest, PendingFreesAreGivenBackOnceTheirEventsHaveRun) {
  const StreamId stream = NewStream();
  cudasim_hold_streams(1);
  Block* const block = Malloc(kLarge, 3 * kMiB);
  block->streams.push_back(stream);
  Work(stream);
  Free(block);
  EXPECT_TRUE(waits_->SynchronizePendingFrees().has_value());
  EXPECT_FALSE(parts().frees.pending());
  EXPECT_EQ(parts().stats.num_sync_all_streams, 1);
  cudasim_hold_streams(0);
}

}  // namespace
}  // namespace stratalloc
