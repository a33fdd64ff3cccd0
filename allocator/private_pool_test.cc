// SPDX-License-Identifier: Apache-2.0
// Private pools: routes, use counts, what stays and what is given back, frees
// during a capture, checkpoints.
#include "allocator/private_pool.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
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
  EXPECT_NE(refused.error().message.find(
                "with 40.00 MiB allocated in private pools (e.g., CUDA "
                "Graphs), "),
            std::string::npos)
      << refused.error().message;
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

// What lies before the first block of a checkpoint stays free, and is found.
TEST_F(PrivatePoolTest, GoingBackLeavesTheFrontFree) {
  Route(kGraph);
  const Address front = Malloc(3 * kMiB), block = Malloc(5 * kMiB);
  ASSERT_EQ(block, front + 3 * kMiB);
  Free(front);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  Free(block);
  ASSERT_TRUE(allocator().GoBackTo(*checkpoint).has_value());
  live_.push_back(block);
  EXPECT_EQ(Malloc(3 * kMiB), front);
  EndRoute(kGraph);
  Release(kGraph);
}

// Half of a block's place is not its place.
TEST_F(PrivatePoolTest, GoingBackWantsTheWholePlace) {
  const StreamId other = NewStream();
  Route(kGraph);
  const Address whole = Malloc(4 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  Free(whole);
  const Address front = Malloc(2 * kMiB), back = Malloc(2 * kMiB);
  ASSERT_EQ(front, whole);
  ASSERT_EQ(back, whole + 2 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(back, other).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(back);
  EXPECT_EQ(allocator().GoBackTo(*checkpoint).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(*allocator().AllocatedIn(kGraph), std::vector<Address>{front});
  cudasim_clear_faults();
  EndRoute(kGraph);
  Release(kGraph);
}

TEST_F(PrivatePoolTest, GoingBackWaitsForNoStreamAndLooksAtEventsFirst) {
  const StreamId other = NewStream();
  const Address outside = Malloc(512);  // of no concern to the checkpoint
  Route(kGraph);
  const Address a = Malloc(3 * kMiB), b = Malloc(5 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(checkpoint->allocated.size(), 2u);
  // `a` is freed and its event done, but nobody has looked; `b` is allocated,
  // and another stream uses it.
  ASSERT_TRUE(allocator().RecordStream(a, other).has_value());
  ASSERT_TRUE(allocator().RecordStream(b, other).has_value());
  Free(a);
  cudaDeviceSynchronize();
  auto delta = allocator().GoBackTo(*checkpoint);
  ASSERT_TRUE(delta.has_value()) << delta.error().message;
  EXPECT_EQ(delta->freed.size(), 1u);
  EXPECT_EQ(delta->allocated.size(), 2u);
  live_.push_back(a);
  EndRoute(kGraph);
  Release(kGraph);
  Free(outside);
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

// An allocator that is not ours: spans of one array, and how many are out.
struct Lender {
  std::vector<std::pair<Address, Bytes>> out;
  Address next = Address{1} << 40;  // far from the reservation
  bool empty = false;
  std::function<void()> meanwhile;  // while it is asked, once

  std::shared_ptr<const MemorySource> Source() {
    return std::make_shared<const MemorySource>(MemorySource{
        [this](Bytes bytes, StreamId) -> Result<Address> {
          if (empty) return Fail(ErrorCode::kOutOfMemory, "empty");
          if (meanwhile) std::exchange(meanwhile, nullptr)();
          out.push_back({next, bytes});
          next += 2 * bytes;
          return out.back().first;
        },
        [this](Address address) {
          std::erase_if(
              out, [&](const auto& each) { return each.first == address; });
        }});
  }
};

TEST_F(PrivatePoolTest, MemoryOfAnotherAllocatorComesAndGoesInSegments) {
  Lender lender;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  const Address small = Malloc(1000), large = Malloc(3 * kMiB),
                beside = Malloc(4 * kMiB), huge = Malloc(15 * kMiB);
  EndRoute(kUser);
  // Native's sizes: 2 MiB, 20 MiB for both middle ones, 16 MiB.
  ASSERT_EQ(lender.out.size(), 3u);
  EXPECT_EQ(small, lender.out[0].first);
  EXPECT_EQ(large, lender.out[1].first);
  EXPECT_EQ(beside, large + 3 * kMiB);
  EXPECT_EQ(huge, lender.out[2].first);
  EXPECT_EQ(lender.out[2].second, 16 * kMiB);
  EXPECT_EQ(Reserved(), 38 * kMiB);
  EXPECT_EQ(Of(allocator().Stats().segment).current, 3);
  EXPECT_EQ(OwnerOf(large), kUser);
  EXPECT_TRUE(allocator().ContainsPlain(huge + 5));
  EXPECT_FALSE(allocator().ContainsPlain(huge + 16 * kMiB));
  ASSERT_TRUE(allocator().CheckInvariants().has_value());
  // What is free is used again, and is not given back while the pool lives.
  Free(large);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  Route(kUser);
  EXPECT_EQ(Malloc(3 * kMiB), large);
  EndRoute(kUser);
  Release(kUser);
  Release(kUser);
  Release(kUser);
  for (const Address each : {small, large, beside}) Free(each);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  ASSERT_EQ(lender.out.size(), 1u);  // `huge` is still allocated
  EXPECT_EQ(Reserved(), 16 * kMiB);
  Free(huge);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
  EXPECT_EQ(Reserved(), 0u);
  EXPECT_FALSE(allocator().ContainsPlain(huge));
}

TEST_F(PrivatePoolTest, AnotherAllocatorsMemoryCountsAgainstTheLimit) {
  Lender lender;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  const Address half = Malloc(40 * kMiB);
  const MallocRequest more{40 * kMiB, kDefaultStream, LifetimeClass::kTransient,
                           kOwner};
  EXPECT_EQ(allocator().Malloc(more).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(lender.out.size(), 1u);  // was not even asked
  EndRoute(kUser);
  EXPECT_EQ(allocator().Malloc(more).error().code, ErrorCode::kOutOfMemory);
  Route(kUser);
  lender.empty = true;
  EXPECT_EQ(
      allocator()
          .Malloc({2 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner})
          .error()
          .code,
      ErrorCode::kOutOfMemory);
  EndRoute(kUser);
  Free(half);
  Release(kUser);
  Release(kUser);
  Release(kUser);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
}

// Two threads that ask at once do not pass the limit together.
TEST_F(PrivatePoolTest, MemoryThatIsAskedForCountsAgainstTheLimit) {
  Lender lender;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  ErrorCode refusal{};
  lender.meanwhile = [&] {
    std::thread([&] {
      const auto other = allocator().Malloc(
          {40 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner});
      if (!other) refusal = other.error().code;
    }).join();
  };
  Malloc(40 * kMiB);
  EXPECT_EQ(refusal, ErrorCode::kOutOfMemory);
  EXPECT_EQ(lender.out.size(), 1u);
  // What was refused by the source itself counts no longer.
  lender.empty = true;
  EXPECT_FALSE(allocator()
                   .Malloc({20 * kMiB, kDefaultStream,
                            LifetimeClass::kTransient, kOwner})
                   .has_value());
  lender.empty = false;
  Malloc(20 * kMiB);
  EndRoute(kUser);
  Release(kUser);
  Release(kUser);
}

TEST_F(PrivatePoolTest,
       AReturnFromALowerTierLeavesAnotherAllocatorsMemoryRoom) {
  Lender lender;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  Malloc(50 * kMiB);
  EndRoute(kUser);
  EXPECT_FALSE(allocator().TakePhysical(16 * kMiB).has_value());
  Result<PhysicalMemory*> fits = allocator().TakePhysical(12 * kMiB);
  ASSERT_TRUE(fits.has_value());
  allocator().PutPhysical(*fits);
  Release(kUser);
  Release(kUser);
}

// A pool that nobody uses and that holds nothing is gone at once, and with it
// whose memory it had.
TEST_F(PrivatePoolTest, AnEmptyPoolIsForgottenWhenItIsReleased) {
  Lender first, second;
  allocator().CreateOrUsePool(kUser, first.Source());
  ASSERT_TRUE(allocator().SetNoSplit(kUser).has_value());
  Release(kUser);
  EXPECT_EQ(allocator().SetUseOnOom(kUser, true).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(allocator().AllocatedIn(kUser).error().code, ErrorCode::kNotFound);
  allocator().CreateOrUsePool(kUser, second.Source());
  Route(kUser);
  Malloc(3 * kMiB);
  Malloc(3 * kMiB);
  EndRoute(kUser);
  EXPECT_TRUE(first.out.empty());
  EXPECT_EQ(second.out.size(), 1u) << "split again";
  Release(kUser);
  Release(kUser);
  for (const Address address : std::vector<Address>(live_)) Free(address);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(second.out.empty());
}

// A pool's identity can come back with other memory, and its old addresses
// belong to another pool by then.
TEST_F(PrivatePoolTest, ACheckpointTakesNoOtherPoolsMemory) {
  Lender lender;
  const Address place = lender.next;
  allocator().CreateOrUsePool(kGraph, lender.Source());
  Route(kGraph);
  const Address a = Malloc(15 * kMiB);
  ASSERT_EQ(a, place);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  EndRoute(kGraph);
  Release(kGraph);
  Release(kGraph);
  Free(a);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  ASSERT_TRUE(lender.out.empty());
  lender.next = place;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  const Address b = Malloc(15 * kMiB);
  ASSERT_EQ(b, place);
  Free(b);
  EndRoute(kUser);
  allocator().CreateOrUsePool(kGraph);
  EXPECT_EQ(allocator().GoBackTo(*checkpoint).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Of(allocator().Stats().active).current, 0);
  for (const PoolId id : {kGraph, kUser, kUser}) Release(id);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
}

TEST_F(PrivatePoolTest, ACheckpointThatCannotBeReachedChangesNothing) {
  const StreamId other = NewStream();
  Route(kGraph);
  const Address a = Malloc(3 * kMiB), b = Malloc(3 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  // `a` waits for an event that does not complete: its place is not free.
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Use(a, 3 * kMiB, other);
  ASSERT_TRUE(allocator().RecordStream(a, other).has_value());
  ASSERT_TRUE(allocator().RecordStream(b, other).has_value());
  Free(a);
  const auto before = allocator().AllocatedIn(kGraph);
  auto delta = allocator().GoBackTo(*checkpoint);
  ASSERT_FALSE(delta.has_value()) << "over a block that is still in use";
  EXPECT_EQ(delta.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(*before, std::vector<Address>{b});
  EXPECT_EQ(*allocator().AllocatedIn(kGraph), *before);
  Free(b);  // still has its recorded stream
  EXPECT_NE(Malloc(3 * kMiB), b) << "handed out while it is in use";
  cudasim_clear_faults();
  ASSERT_TRUE(allocator().CheckInvariants().has_value());
  EndRoute(kGraph);
  Release(kGraph);
}

}  // namespace
}  // namespace stratalloc
