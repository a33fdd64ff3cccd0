// SPDX-License-Identifier: Apache-2.0
// What is asked of one device about private pools and captures. What a program
// sees of it is in private_pool_test.cc.
#include "allocator/requests/pool_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0}, kUser{0, 1}, kNone{0, 7};

class PoolRequestsTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    waits_.emplace(parts());
    requests_.emplace(parts(), *waits_);
    stream_ = NewStream();
  }
  PoolRequests& requests() { return *requests_; }
  static bool Always(StreamId) { return true; }
  static bool Never(StreamId) { return false; }
  static PoolKey KeyOf(PoolId owner) {
    PoolKey key = kLarge;
    key.lifetime = LifetimeClass::kTransient;
    key.owner = owner;
    return key;
  }
  // Without a word to anybody.
  void BeginCapture() {
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed),
              cudaSuccess);
  }
  void EndCapture() {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  static std::uint32_t PinsOf(const Block& block) {
    std::uint32_t most = 0;
    ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
      most = std::max(most, handle.entry().pins.load());
    });
    return most;
  }
  static HandleUse& UseOf(const Block& block) {
    return block.segment->region
        ->entries[block.segment->region->IndexOf(block.address)];
  }
  static long Asked() { return cudasim_calls("cudaStreamIsCapturing"); }

  std::optional<DeviceWaits> waits_;
  std::optional<PoolRequests> requests_;
  StreamId stream_{};
};

TEST_F(PoolRequestsTest, APoolThatIsNotThereIsNotFound) {
  for (const Status& status :
       {requests().ReleasePool(kNone), requests().SetUseOnOom(kNone, true),
        requests().SetNoSplit(kNone)}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  }
  EXPECT_EQ(requests().AllocatedIn(kNone).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(requests().TakeCheckpoint(kNone).error().code,
            ErrorCode::kNotFound);
  EXPECT_FALSE(requests().KeepForPool(kNone, {}));
  EXPECT_EQ(requests().PoolUseCount(kNone), 0);
  EXPECT_TRUE(parts().private_pools.all().empty()) << "and is not made";
}

TEST_F(PoolRequestsTest, RoutesAndUsesAreCountedTogether) {
  requests().CreateOrUsePool(kUser);
  ASSERT_TRUE(requests().BeginAllocateToPool(kUser, &Always).has_value());
  EXPECT_EQ(requests().PoolUseCount(kUser), 2);
  EXPECT_FALSE(requests().MayCapture()) << "its stream allocates there at once";
  const Status again = requests().BeginAllocateToPool(kUser, &Always);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(requests().PoolUseCount(kUser), 2);
  ASSERT_TRUE(requests().EndAllocateToPool(kUser).has_value());
  EXPECT_EQ(requests().PoolUseCount(kUser), 2) << "a route's end keeps its use";
  ASSERT_TRUE(requests().ReleasePool(kUser).has_value());
  ASSERT_TRUE(requests().ReleasePool(kUser).has_value());
  EXPECT_EQ(requests().PoolUseCount(kUser), 0);
}

TEST_F(PoolRequestsTest, ARouteThatAcceptsNothingYetIsOfACapture) {
  std::thread([&] {  // back in the thread that set it, it would be over
    ASSERT_TRUE(
        requests().BeginAllocateToPool(kGraph, &Never, stream_).has_value());
  })
      .join();
  EXPECT_TRUE(requests().MayCapture());
  EXPECT_TRUE(requests().LookAtCaptures().under_way);
  EXPECT_FALSE(requests().IsCapturing(stream_)) << "it has yet to begin";
  ASSERT_TRUE(requests().EndAllocateToPool(kGraph).has_value());
  EXPECT_FALSE(requests().MayCapture());
  EXPECT_TRUE(requests().AwaitRoutes());
  ASSERT_TRUE(requests().ReleasePool(kGraph).has_value());
}

TEST_F(PoolRequestsTest, AllocatedBytesOfAllPoolsAddUp) {
  std::vector<Block*> blocks;
  for (const PoolId id : {kUser, kGraph}) {
    requests().CreateOrUsePool(id);
    for (int i = 0; i < 2; ++i) blocks.push_back(Malloc(KeyOf(id), 3 * kMiB));
  }
  blocks.push_back(Malloc(kLarge, kMiB));  // nobody's
  EXPECT_EQ(requests().PrivateAllocated(), 12 * kMiB);
  std::vector<Address> of_user = {blocks[0]->address, blocks[1]->address};
  std::sort(of_user.begin(), of_user.end());
  EXPECT_EQ(requests().AllocatedIn(kUser).value(), of_user);
  for (Block* block : blocks) Free(block);
  EXPECT_EQ(requests().PrivateAllocated(), 0u);
  EXPECT_TRUE(requests().AllocatedIn(kUser).value().empty());
  for (const PoolId id : {kUser, kGraph}) {
    ASSERT_TRUE(requests().ReleasePool(id).has_value());
  }
}

TEST_F(PoolRequestsTest, OnlyAPoolWithoutUseIsEmptied) {
  requests().CreateOrUsePool(kUser);
  Free(Malloc(KeyOf(kUser), 3 * kMiB));
  Free(Malloc(kLarge, 3 * kMiB));
  ASSERT_TRUE(requests().EmptyPool(kUser).has_value());
  EXPECT_EQ(Reserved(), 4 * kHandle);
  ASSERT_TRUE(requests().ReleasePool(kUser).has_value());
  BeginCapture();
  requests().NoteCapture(stream_);
  ASSERT_TRUE(requests().EmptyPool(kUser).has_value());
  EXPECT_EQ(Reserved(), 4 * kHandle) << "nothing while a stream captures";
  EndCapture();
  ASSERT_TRUE(requests().EmptyPool(kUser).has_value());
  EXPECT_EQ(Reserved(), 2 * kHandle) << "and nobody else's memory";
  EXPECT_EQ(cudasim_used(0), 2 * kHandle) << "the driver has it";
}

TEST_F(PoolRequestsTest, ACaptureIsAskedForWhileOneIsKnown) {
  BeginCapture();
  const long asked = Asked();
  EXPECT_FALSE(requests().MayCapture()) << "nobody has noted it";
  EXPECT_FALSE(requests().IsCapturing(stream_));
  EXPECT_FALSE(requests().CapturesHere(stream_));
  EXPECT_FALSE(requests().LookAtCaptures().under_way);
  EXPECT_EQ(Asked(), asked) << "without a route the driver is not asked";
  requests().NoteCapture(stream_);
  EXPECT_TRUE(requests().MayCapture());
  EXPECT_TRUE(requests().IsCapturing(stream_));
  EXPECT_TRUE(requests().CapturesHere(stream_));
  const std::uint64_t over = requests().LookAtCaptures().times_over;
  EndCapture();
  EXPECT_FALSE(requests().CapturesHere(stream_));
  EXPECT_EQ(requests().LookAtCaptures().times_over, over + 1);
}

TEST_F(PoolRequestsTest, WhoCapturesIsNoOtherToItself) {
  BeginCapture();
  requests().NoteCapture(stream_);
  EXPECT_FALSE(requests().LookAtCaptures().under_way);
  bool others = false;
  std::thread([&] { others = requests().LookAtCaptures().under_way; }).join();
  EXPECT_TRUE(others);
  EndCapture();
}

// A stream of a MemPool captures without torch, and no operator of it has been
// seen: nothing may leave, so who waits must see that it lasts.
TEST_F(PoolRequestsTest, ALookFindsACaptureThatNobodyNoted) {
  ASSERT_TRUE(
      requests().BeginAllocateToPool(kUser, &Always, stream_).has_value());
  parts().private_pools.NoteStream(stream_);  // a malloc of it
  EXPECT_FALSE(requests().LookAtCaptures().under_way);
  BeginCapture();
  EXPECT_FALSE(requests().MayCapture());
  EXPECT_FALSE(requests().AwaitRoutes()) << "nothing leaves";
  EXPECT_TRUE(requests().LookAtCaptures().under_way);
  EndCapture();
  EXPECT_FALSE(requests().LookAtCaptures().under_way);
  EXPECT_TRUE(requests().AwaitRoutes());
  ASSERT_TRUE(requests().EndAllocateToPool(kUser).has_value());
  ASSERT_TRUE(requests().ReleasePool(kUser).has_value());
}

TEST_F(PoolRequestsTest, WhatAGraphUsesStaysAsLongAsItCouldRun) {
  Block* const routed = Malloc(kLarge, kHandle);
  Block* const raw = Malloc(kLarge, kHandle);
  HandleUse* const of_routed = &UseOf(*routed);
  ASSERT_TRUE(requests()
                  .BeginAllocateToPool(
                      kGraph,
                      [this](StreamId stream) {
                        return parts().device.IsCapturing(stream);
                      },
                      stream_)
                  .has_value());
  EXPECT_TRUE(requests().KeepForPool(kGraph, {&of_routed, 1}));
  BeginCapture();
  EXPECT_TRUE(requests().KeepForGraph(stream_, {&of_routed, 1}));
  EXPECT_EQ(PinsOf(*routed), 1u) << "once by each pool";
  EXPECT_FALSE(requests().KeepForGraph(kDefaultStream, {&of_routed, 1}))
      << "that one does not capture";
  requests().KeepUntilFreed(UseOf(*raw));
  EndCapture();
  ASSERT_TRUE(requests().EndAllocateToPool(kGraph).has_value());
  EXPECT_EQ(PinsOf(*routed), 1u) << "its graph may be replayed";
  ASSERT_TRUE(requests().ReleasePool(kGraph).has_value());
  EXPECT_EQ(PinsOf(*routed), 0u);
  EXPECT_EQ(PinsOf(*raw), 1u);
  HandleUse& of_raw = UseOf(*raw);
  for (Block* block : {routed, raw}) Free(block);
  EXPECT_EQ(of_raw.pins.load(), 0u);
}

}  // namespace
}  // namespace stratalloc
