// SPDX-License-Identifier: Apache-2.0
// Private pools: routes, use counts, what stays and what is given back, frees
// during a capture, checkpoints.
#include "allocator/private_pool.h"

#include <algorithm>
#include <string>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0};
constexpr PoolId kUser{0, 1};

class PrivatePoolTest : public DeviceAllocatorTest {
 protected:
  static bool Always(StreamId) { return true; }
  void Route(PoolId id) {
    ASSERT_TRUE(allocator().BeginAllocateToPool(id, &Always).has_value());
  }
  void EndRoute(PoolId id) {
    ASSERT_TRUE(allocator().EndAllocateToPool(id).has_value());
  }
  void Release(PoolId id) {
    ASSERT_TRUE(allocator().ReleasePool(id).has_value());
  }
  PoolId OwnerOf(Address address) {
    for (const SegmentView& view : allocator().Snapshot()) {
      if (address >= view.address && address < view.address + view.bytes) {
        return view.owner;
      }
    }
    ADD_FAILURE() << "no segment holds the address";
    return {};
  }
  Bytes Reserved() {
    return static_cast<Bytes>(Of(allocator().Stats().reserved_bytes).current);
  }
  static void Capture(StreamId stream, bool on) {
    auto* const raw = reinterpret_cast<cudaStream_t>(Raw(stream));
    if (on) {
      ASSERT_EQ(cudaStreamBeginCapture(raw, cudaStreamCaptureModeGlobal),
                cudaSuccess);
      return;
    }
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(raw, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
};

TEST_F(PrivatePoolTest, TheLastRouteThatAcceptsTheStreamWins) {
  const StreamId mine = NewStream();
  Route(kGraph);
  ASSERT_TRUE(allocator()
                  .BeginAllocateToPool(
                      kUser, [&](StreamId stream) { return stream == mine; })
                  .has_value());
  EXPECT_EQ(OwnerOf(Malloc(512, mine)), kUser);
  EXPECT_EQ(OwnerOf(Malloc(512)), kGraph);
  EndRoute(kUser);
  EXPECT_EQ(OwnerOf(Malloc(512, mine)), kGraph);
  EndRoute(kGraph);
  EXPECT_EQ(OwnerOf(Malloc(512, mine)), PoolId{});
  Release(kGraph);
  Release(kUser);
}

TEST_F(PrivatePoolTest, MistakesAreNamedAndChangeNothing) {
  Route(kGraph);
  EXPECT_EQ(allocator().BeginAllocateToPool(kGraph, &Always).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(allocator().PoolUseCount(kGraph), 1);
  EndRoute(kGraph);
  EXPECT_EQ(allocator().EndAllocateToPool(kGraph).error().code,
            ErrorCode::kInvalidArgument);
  Release(kGraph);
  EXPECT_EQ(allocator().ReleasePool(kGraph).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(allocator().SetNoSplit(kUser).error().code, ErrorCode::kNotFound);
}

TEST_F(PrivatePoolTest, CachedMemoryStaysWhileThePoolIsUsed) {
  Route(kGraph);
  const Address address = Malloc(8 * kMiB);
  EndRoute(kGraph);
  Free(address);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_GE(Reserved(), 8 * kMiB);
  // A request that would need it does not get it either.
  EXPECT_EQ(allocator()
                .Malloc({60 * kMiB, kDefaultStream, LifetimeClass::kTransient,
                         kOwner})
                .error()
                .code,
            ErrorCode::kOutOfMemory);
  EXPECT_GE(Reserved(), 8 * kMiB);
  Release(kGraph);
  EXPECT_EQ(allocator().PoolUseCount(kGraph), 0);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(Reserved(), 0u);
}

TEST_F(PrivatePoolTest, WhatOutlivesThePoolIsGivenBackWhenItIsFreed) {
  Route(kGraph);
  const Address address = Malloc(8 * kMiB);
  EndRoute(kGraph);
  Release(kGraph);
  ASSERT_TRUE(allocator().EmptyPool(kGraph).has_value());
  EXPECT_GE(Reserved(), 8 * kMiB);
  Free(address);
  ASSERT_TRUE(allocator().EmptyPool(kGraph).has_value());
  EXPECT_EQ(Reserved(), 0u);
}

TEST_F(PrivatePoolTest, APoolThatLendsServesTheLastResort) {
  allocator().CreateOrUsePool(kUser);
  Route(kUser);
  const Address address = Malloc(40 * kMiB);
  EndRoute(kUser);
  Free(address);
  ASSERT_TRUE(allocator().SetUseOnOom(kUser, true).has_value());
  const Address lent =
      Malloc(32 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_EQ(OwnerOf(lent), kUser);
  Release(kUser);
  Release(kUser);
}

TEST_F(PrivatePoolTest, WithoutSplittingEverySegmentIsOneBlock) {
  allocator().CreateOrUsePool(kUser);
  ASSERT_TRUE(allocator().SetNoSplit(kUser).has_value());
  Route(kUser);
  Free(Malloc(16 * kMiB));
  Malloc(12 * kMiB);
  Malloc(12 * kMiB);
  EndRoute(kUser);
  int segments = 0;
  for (const SegmentView& view : allocator().Snapshot()) {
    EXPECT_EQ(view.blocks.size(), 1u);
    ++segments;
  }
  EXPECT_EQ(segments, 2);
  Release(kUser);
  Release(kUser);
}

TEST_F(PrivatePoolTest, ACaptureIsNotSpoiledAndItsFreesComeLater) {
  const StreamId captured = NewStream(), other = NewStream();
  const Address before = Malloc(2 * kMiB, captured);
  const Address cached = Malloc(20 * kMiB, captured);
  Free(cached);
  Route(kGraph);
  Capture(captured, true);
  const Address inside = Malloc(4 * kMiB, captured);
  ASSERT_TRUE(allocator().RecordStream(before, other).has_value());
  ASSERT_TRUE(allocator().RecordStream(inside, captured).has_value());
  Free(before);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_GE(Reserved(), 20 * kMiB);  // nothing was given back
  Free(inside);
  EXPECT_EQ(Of(allocator().Stats().active).current, 1);  // `before` waits
  Capture(captured, false);  // fails if anything had spoiled it
  EndRoute(kGraph);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(Of(allocator().Stats().active).current, 0);
  Release(kGraph);
}

TEST_F(PrivatePoolTest, ACheckpointBringsBlocksBackToTheirAddresses) {
  Route(kGraph);
  const Address a = Malloc(3 * kMiB), b = Malloc(1000), c = Malloc(5 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  ASSERT_EQ(checkpoint->allocated.size(), 3u);
  Free(a);
  Free(b);
  const Address d = Malloc(2 * kMiB);  // into a's place
  auto delta = allocator().GoBackTo(*checkpoint);
  ASSERT_TRUE(delta.has_value()) << delta.error().message;
  EXPECT_EQ(delta->freed.size(), 2u);  // c and d
  EXPECT_EQ(delta->allocated.size(), 3u);
  auto live = allocator().AllocatedIn(kGraph);
  ASSERT_TRUE(live.has_value());
  std::vector<Address> wanted = {a, b, c};
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(*live, wanted);
  EXPECT_EQ(Of(allocator().Stats().requested_bytes).current,
            static_cast<std::int64_t>(8 * kMiB + 1000));
  ASSERT_TRUE(allocator().CheckInvariants().has_value());
  std::erase(live_, d);
  live_.push_back(a);
  live_.push_back(b);
  EndRoute(kGraph);
  Release(kGraph);
}

TEST_F(PrivatePoolTest, ACheckpointOfAPoolThatIsGoneIsRefused) {
  EXPECT_EQ(allocator().TakeCheckpoint(kGraph).error().code,
            ErrorCode::kNotFound);
  Route(kGraph);
  const Address a = Malloc(512);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  EndRoute(kGraph);
  Release(kGraph);
  EXPECT_EQ(allocator().GoBackTo(*checkpoint).error().code,
            ErrorCode::kNotFound);
  Free(a);
}

}  // namespace
}  // namespace stratalloc
