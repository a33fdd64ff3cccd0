// SPDX-License-Identifier: Apache-2.0
// Which streams capture, and what is forbidden meanwhile.
#include "allocator/streams/captures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0};
constexpr auto kFilter = static_cast<std::uint32_t>(SlowReason::kPoolFilter);

class CapturesTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    stream_ = NewStream();
    bit_ = std::uint64_t{1} << parts().streams.BitOf(stream_);
  }
  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed),
              cudaSuccess);
  }
  void End() {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  Captures& captures() { return parts().captures; }
  bool Filters() { return (parts().slow.word() & kFilter) != 0; }

  StreamId stream_{};
  std::uint64_t bit_ = 0;
};

TEST_F(CapturesTest, OneThatTorchDidNotBeginIsKnownOnceNoted) {
  Begin();
  EXPECT_FALSE(captures().UnderWay()) << "nobody has asked the driver";
  EXPECT_TRUE(captures().Some(bit_));
  EXPECT_TRUE(captures().Note(stream_));
  EXPECT_TRUE(captures().UnderWay());
  EXPECT_FALSE(captures().MayEvict());
  EXPECT_TRUE(Filters());
  End();
  EXPECT_FALSE(captures().UnderWay());
  EXPECT_TRUE(captures().MayEvict());
  EXPECT_FALSE(Filters());
  EXPECT_FALSE(captures().Note(stream_));
}

TEST_F(CapturesTest, ManyStreamsMeanEveryStream) {
  Begin();
  EXPECT_FALSE(captures().Some(std::uint64_t{1} << 5)) << "another one";
  EXPECT_TRUE(captures().Some(std::uint64_t{1} << StreamTable::kOverflowBit));
  End();
}

TEST_F(CapturesTest, ARouteOfACaptureThatHasYetToBeginForbidsEvictions) {
  PrivatePools& pools = parts().private_pools;
  // By another thread: back in this one it would be over.
  std::thread([&] {
    ASSERT_TRUE(pools
                    .BeginRoute(
                        kGraph, [](StreamId) { return false; }, stream_,
                        /*captures=*/true)
                    .has_value());
  }).join();
  EXPECT_FALSE(captures().MayEvict());
  EXPECT_FALSE(captures().UnderWay());
  EXPECT_TRUE(Filters());
  EXPECT_EQ(captures().RouteOf(stream_), PoolId{}) << "it does not capture";
  ASSERT_TRUE(pools.EndRoute(kGraph).has_value());
  captures().Publish();
  EXPECT_TRUE(captures().MayEvict());
  EXPECT_FALSE(Filters());
  ASSERT_TRUE(pools.Release(kGraph).has_value());
}

// What one thread captures is no other's, but on the stream that captures.
TEST_F(CapturesTest, OneIsHereForItsThreadAndOnItsStream) {
  const StreamId other = NewStream();
  EXPECT_FALSE(captures().IsHere(stream_));
  Begin();
  std::thread([&] {
    ASSERT_TRUE(captures().Note(stream_));
    EXPECT_TRUE(captures().IsHere(other)) << "this thread captures";
  }).join();
  EXPECT_FALSE(captures().IsHere(other));
  EXPECT_FALSE(captures().IsHere(kDefaultStream));
  EXPECT_TRUE(captures().IsHere(stream_)) << "as autograd's thread works on it";
  End();
  captures().Settle();
  EXPECT_FALSE(captures().IsHere(stream_));
}

TEST_F(CapturesTest, WorkIsInOrderAndIdleOnlyWithoutACapture) {
  EXPECT_EQ(captures().OwnBit(stream_), bit_);
  EXPECT_TRUE(captures().AskStreams()(bit_));
  EXPECT_FALSE(
      captures().AskStreams()(std::uint64_t{1} << StreamTable::kOverflowBit))
      << "streams that nobody can name";
  cudasim_hold_streams(1);
  Work(stream_);
  EXPECT_FALSE(captures().AskStreams()(bit_));
  cudasim_hold_streams(0);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_TRUE(captures().AskStreams()(bit_));
  Begin();
  ASSERT_TRUE(captures().Note(stream_));
  EXPECT_EQ(captures().OwnBit(stream_), 0u);
  EXPECT_FALSE(captures().AskStreams()(0));
  End();
}

TEST_F(CapturesTest, WhatACapturedOperatorMadeStaysUntilItIsFreed) {
  PoolKey key = kLarge;
  key.stream = stream_;
  Block* const block = Malloc(key, 3 * kMiB);
  captures().KeepMade(*block);
  const auto pins = [&] {
    std::uint32_t most = 0;
    ForEachHandleOf(*block->segment, [&](HandleRef handle) {
      most = std::max(most, handle.entry().pins.load());
    });
    return most;
  };
  EXPECT_EQ(pins(), 0u) << "nothing captures";
  Begin();
  captures().KeepMade(*block);
  EXPECT_EQ(pins(), 1u);
  End();
  EXPECT_EQ(pins(), 1u) << "its graph may be replayed";
  const Segment& segment = *block->segment;
  Free(block);
  ForEachHandleOf(segment, [](HandleRef handle) {
    EXPECT_EQ(handle.entry().pins.load(), 0u);
  });
}

TEST_F(CapturesTest, FreesOfRecordedBlocksArePutOffMeanwhile) {
  Block* const block = Malloc(kLarge, 3 * kMiB);
  block->streams.push_back(stream_);
  Begin();
  Free(block);
  EXPECT_EQ(block->state, BlockState::kPending);
  EXPECT_TRUE(parts().frees.some_put_off());
  EXPECT_FALSE(parts().frees.pending()) << "no event was recorded";
  EXPECT_TRUE(Filters());
  End();
  EXPECT_FALSE(captures().UnderWay());
  EXPECT_TRUE(Filters()) << "until the free is looked after";
  parts().blocks.RedeemPutOff();
  EXPECT_FALSE(parts().frees.some_put_off());
  EXPECT_FALSE(Filters());
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  parts().blocks.Process();
}

}  // namespace
}  // namespace stratalloc
