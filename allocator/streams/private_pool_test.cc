// SPDX-License-Identifier: Apache-2.0
// Private pools: routes, use counts, what stays and what is given back, frees
// during a capture.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/private_pool_fixture_test.h"

namespace stratalloc {
namespace {

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
  ASSERT_TRUE(allocator().EmptyPool(kGraph).has_value());
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

// torch._C._cuda_beginAllocateCurrentThreadToPool(device, (0, 0)) is possible:
// the id of no pool. Its end must not take everybody's pools with it.
TEST_F(PrivatePoolTest, TheIdOfNoPoolIsNobodysPool) {
  const Address before = Malloc(4 * kMiB);
  Route(PoolId{});
  EXPECT_EQ(OwnerOf(Malloc(4 * kMiB)), PoolId{});
  EndRoute(PoolId{});
  for (const Address address : std::vector<Address>(live_)) Free(address);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  const StreamId stream = NewStream();
  const Address kept = Malloc(1 * kMiB, stream);
  Free(kept);  // into a bin of a pool that is found without a search from now
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  Release(PoolId{});
  EXPECT_EQ(allocator().PoolUseCount(PoolId{}), 0);
  EXPECT_EQ(Malloc(1 * kMiB, stream), kept);
  EXPECT_EQ(Malloc(4 * kMiB), before);
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
  EXPECT_FALSE(allocator()
                   .Malloc({32 * kMiB, kDefaultStream,
                            LifetimeClass::kTransient, kOwner})
                   .has_value());
  ASSERT_TRUE(allocator().SetUseOnOom(kUser, true).has_value());
  const Address lent =
      Malloc(32 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_EQ(OwnerOf(lent), kUser);
  Free(lent);
  const MallocRequest more{32 * kMiB, kDefaultStream, LifetimeClass::kTransient,
                           kOwner};
  // Not to other private pools, and not once it is switched off.
  Route(kGraph);
  EXPECT_FALSE(allocator().Malloc(more).has_value());
  EndRoute(kGraph);
  Release(kGraph);
  ASSERT_TRUE(allocator().SetUseOnOom(kUser, false).has_value());
  EXPECT_FALSE(allocator().Malloc(more).has_value());
  Release(kUser);
  Release(kUser);
}

TEST_F(PrivatePoolTest, WhatIsSaidOfNobodysIdIsNotSaidOfEverybodysPools) {
  allocator().CreateOrUsePool(PoolId{});
  ASSERT_TRUE(allocator().SetNoSplit(PoolId{}).has_value());
  Free(Malloc(16 * kMiB));
  const Address part = Malloc(4 * kMiB);
  BlockView block;
  ASSERT_TRUE(allocator().FindLive(part, &block));
  EXPECT_EQ(block.bytes, 4 * kMiB) << "it is split";
  Free(part);
  Release(PoolId{});
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

TEST_F(PrivatePoolTest, UsesInsideACaptureAreNotWaitedFor) {
  const StreamId captured = NewStream(), side = NewStream();
  Route(kGraph);
  Capture(captured, true);
  Capture(side, true);
  const Address inside = Malloc(4 * kMiB, captured);
  ASSERT_TRUE(allocator().RecordStream(inside, side).has_value());
  Free(inside);
  EXPECT_EQ(Of(allocator().Stats().active).current, 1);
  Capture(side, false);
  Capture(captured, false);
  EndRoute(kGraph);
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(Malloc(512));  // no event stands before it
  EXPECT_EQ(Of(allocator().Stats().active).current, 0);
  cudasim_clear_faults();
  Release(kGraph);
}

TEST_F(PrivatePoolTest, TheFirstMallocOfAStreamMayBeInACapture) {
  const StreamId captured = NewStream(), side = NewStream();
  const Address before = Malloc(4 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(before, side).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(before);
  Route(kGraph);
  Capture(captured, true);
  const long queries = cudasim_calls("cudaEventQuery");
  const Address inside = Malloc(512, captured);
  EXPECT_EQ(cudasim_calls("cudaEventQuery"), queries) << "it spoils a capture";
  Capture(captured, false);
  cudasim_clear_faults();
  EndRoute(kGraph);
  Free(inside);
  Release(kGraph);
}

TEST_F(PrivatePoolTest, AStreamIsAskedOnceHoweverManyPoolsItHas) {
  const StreamId stream = NewStream();
  Free(Malloc(4 * kMiB, stream));
  Route(kGraph);
  const auto questions = [&] {
    EXPECT_TRUE(allocator().EmptyCache().has_value());  // nothing is left
    const long before = cudasim_calls("cudaStreamIsCapturing");
    EXPECT_TRUE(allocator().EmptyCache().has_value());
    return cudasim_calls("cudaStreamIsCapturing") - before;
  };
  const long asked = questions();
  EXPECT_GT(asked, 0);
  for (const Bytes size : {Bytes{512}, 4 * kMiB}) {
    for (int c = 0; c < kLifetimeClasses; ++c) {
      Free(Malloc(size, stream, static_cast<LifetimeClass>(c)));
    }
  }
  EXPECT_EQ(questions(), asked);
  EndRoute(kGraph);
  Release(kGraph);
}

TEST_F(PrivatePoolTest, UsesBeforeACaptureAreWaitedFor) {
  const StreamId captured = NewStream(), side = NewStream(),
                 other = NewStream();
  const Address before = Malloc(4 * kMiB, captured);
  ASSERT_TRUE(allocator().RecordStream(before, other).has_value());
  Route(kGraph);
  Capture(captured, true);
  Capture(side, true);
  ASSERT_TRUE(allocator().RecordStream(before, side).has_value());
  Free(before);
  Capture(side, false);
  Capture(captured, false);
  EndRoute(kGraph);
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(Malloc(512));
  EXPECT_EQ(Of(allocator().Stats().active).current, 1) << "`other` uses it";
  cudasim_clear_faults();
  Free(Malloc(512));
  EXPECT_EQ(Of(allocator().Stats().active).current, 0);
  Release(kGraph);
}

// The fast path is closed by routes and by frees that were put off, and open
// again once they are gone.
TEST_F(PrivatePoolTest, TheFirstMallocAfterACaptureLooksAfterItsFrees) {
  const StreamId captured = NewStream(), side = NewStream();
  AllocatedBlock block;
  const auto fast = [&] {
    if (!allocator().FastMalloc(512, kDefaultStream, LifetimeClass::kPersistent,
                                kOwner, &block)) {
      return false;
    }
    EXPECT_TRUE(allocator().Free(block.address).has_value());
    return true;
  };
  Free(Malloc(512));
  EXPECT_TRUE(fast());
  Route(kGraph);
  EXPECT_FALSE(fast());
  EndRoute(kGraph);
  EXPECT_TRUE(fast());
  Release(kGraph);
  const Address spare = Malloc(512);
  Route(kGraph);
  Capture(captured, true);
  Capture(side, true);
  const Address inside = Malloc(4 * kMiB, captured);
  ASSERT_TRUE(allocator().RecordStream(inside, side).has_value());
  Free(inside);
  Capture(side, false);
  Capture(captured, false);
  EndRoute(kGraph);
  EXPECT_FALSE(allocator().FastFree(spare, &block));
  Free(spare);
  Free(Malloc(512));
  EXPECT_EQ(Of(allocator().Stats().active).current, 0);
  EXPECT_TRUE(fast());
  Release(kGraph);
}

TEST_F(PrivatePoolTest, EmptyingAPoolInACaptureReleasesNothing) {
  const StreamId captured = NewStream();
  Malloc(30 * kMiB);
  Free(Malloc(20 * kMiB));
  Malloc(6 * kMiB, captured);  // trades 20 MiB, leaves 14 MiB for reuse
  Route(kUser);
  const Address cached = Malloc(8 * kMiB);
  EndRoute(kUser);
  Free(cached);
  Release(kUser);
  Route(kGraph);
  Capture(captured, true);
  const Bytes before = Reserved();
  const long calls = cudasim_calls("cuMemRelease");
  ASSERT_TRUE(allocator().EmptyPool(kUser).has_value());
  EXPECT_EQ(Reserved(), before);
  EXPECT_EQ(cudasim_calls("cuMemRelease"), calls);
  Capture(captured, false);
  EndRoute(kGraph);
  ASSERT_TRUE(allocator().EmptyPool(kUser).has_value());
  EXPECT_EQ(Reserved(), before - 8 * kMiB);
  EXPECT_GT(cudasim_calls("cuMemRelease"), calls);
  Release(kGraph);
}

TEST_F(PrivatePoolTest, OutOfMemorySaysWhatPrivatePoolsHold) {
  Route(kGraph);
  const Address address = Malloc(40 * kMiB);
  EndRoute(kGraph);
  const auto refused = allocator().Malloc(
      {40 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(
      refused.error().message.find("64.00 MiB of which 24.00 MiB is free"),
      std::string::npos)
      << refused.error().message;
  EXPECT_EQ(allocator().PrivateAllocated(), 40 * kMiB);
  Free(address);
  Release(kGraph);
}

// Whoever has addresses of a pool keeps its cached memory where it is; a
// MemPool of which nobody has moves what it has cached before it is out of
// memory.
TEST_F(PrivatePoolTest, OnlyAPoolWithoutGraphsMovesWhatItCaches) {
  const MallocRequest more{50 * kMiB, kDefaultStream, LifetimeClass::kTransient,
                           kOwner};
  for (const bool checkpoint : {false, true}) {
    Route(kUser);
    // The small block between keeps the two places apart.
    const Address one = Malloc(30 * kMiB), between = Malloc(2 * kMiB),
                  two = Malloc(25 * kMiB);
    if (checkpoint) {
      ASSERT_TRUE(allocator().TakeCheckpoint(kUser).has_value());
    }
    Free(one);
    Free(two);
    const auto moved = allocator().Malloc(more);
    EXPECT_EQ(moved.has_value(), !checkpoint);
    if (moved) {
      EXPECT_TRUE(allocator().Free(moved->address).has_value());
    }
    Free(between);
    EndRoute(kUser);
    Release(kUser);
    ASSERT_TRUE(allocator().EmptyCache().has_value());
    EXPECT_EQ(Reserved(), 0u);
  }
}

TEST_F(PrivatePoolTest, ARefusalInACaptureReleasesNothing) {
  const StreamId captured = NewStream();
  Malloc(40 * kMiB);
  Free(Malloc(20 * kMiB));
  Malloc(6 * kMiB, captured);  // trades 20 MiB, leaves 14 MiB for reuse
  Route(kGraph);
  Capture(captured, true);
  const long before = cudasim_calls("cuMemRelease");
  EXPECT_FALSE(
      allocator()
          .Malloc({60 * kMiB, captured, LifetimeClass::kTransient, kOwner})
          .has_value());
  EXPECT_EQ(cudasim_calls("cuMemRelease"), before);
  Capture(captured, false);
  EndRoute(kGraph);
  Release(kGraph);
}

}  // namespace
}  // namespace stratalloc
