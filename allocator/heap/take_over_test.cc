// SPDX-License-Identifier: Apache-2.0
// Free handles change pools where they lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"
#include "allocator/moving_test.h"

namespace stratalloc {
namespace {

constexpr LifetimeClass kGradient = LifetimeClass::kGradient;
constexpr LifetimeClass kTransient = LifetimeClass::kTransient;

class TakeOverTest : public DeviceAllocatorTest {
 protected:
  Address Gradient(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, kGradient);
  }
  Address Activation(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, kTransient);
  }
  bool MayLeave(Address address) {
    bool listed = false;
    for (const EvictableHandle& one : allocator().Evictable()) {
      listed |= one.handle.address() <= address &&
                address - one.handle.address() < one.handle.bytes();
    }
    const bool leaves = stratalloc::MayLeave(allocator(), address);
    EXPECT_EQ(leaves, listed);
    return leaves;
  }
  std::int64_t Segments() {
    return allocator().Stats().segment.stats[0].current;
  }
};

TEST_F(TakeOverTest, ActivationsTakeOverWhatGradientsLeft) {
  const Address gradient = Gradient(24 * kMiB);
  EXPECT_TRUE(MayLeave(gradient));
  Free(gradient);
  const long before = Calls();
  const Address activation = Activation(20 * kMiB);
  EXPECT_EQ(Calls(), before);
  EXPECT_EQ(Reserved(), 24 * kMiB);
  EXPECT_LT(activation, allocator().table().evictable_end());
  // Although it lies there, it stays; and is told as what it is.
  EXPECT_FALSE(MayLeave(activation));
  const Staying staying = allocator().Stays();
  EXPECT_EQ(staying.of(StayReason::kActivation), 20 * kMiB);
  EXPECT_EQ(staying.total(), 20 * kMiB);
  ASSERT_TRUE(allocator().CheckInvariants());
  // What is left of it is the gradients' still.
  EXPECT_TRUE(MayLeave(Gradient(4 * kMiB)));
  EXPECT_EQ(Calls(), before);
  EXPECT_EQ(Segments(), 2);
}

TEST_F(TakeOverTest, AndGiveItBackWhole) {
  Free(Gradient(24 * kMiB));
  const Address a = Activation(8 * kMiB), b = Activation(6 * kMiB);
  EXPECT_EQ(Segments(), 2);
  const long before = Calls();
  Free(a);
  Free(b);
  // Half of it is the activations' still: one run all the same.
  const Address again = Gradient(24 * kMiB);
  EXPECT_EQ(again, a);
  EXPECT_TRUE(MayLeave(again));
  EXPECT_TRUE(MayLeave(again + 22 * kMiB));
  EXPECT_EQ(Segments(), 1);
  EXPECT_EQ(Calls(), before);
}

TEST_F(TakeOverTest, OnlyWholeHandlesChangeTheirClass) {
  const Address first = Gradient(3 * kMiB), second = Gradient(3 * kMiB);
  Free(second);  // [3, 6) of three handles: one is whole
  const long before = Calls();
  const Address activation = Activation(2 * kMiB);
  EXPECT_EQ(activation, first + 4 * kMiB);
  EXPECT_EQ(Calls(), before);
  EXPECT_TRUE(MayLeave(first));
  EXPECT_TRUE(MayLeave(first + 2 * kMiB));
  EXPECT_FALSE(MayLeave(activation));
  EXPECT_NE(Activation(1 * kMiB + 512), first + 3 * kMiB);
}

// Whole handles are more than growth needs where the class has a part of one
// free: near the limit that would be what another is refused.
TEST_F(TakeOverTest, NearTheLimitTheFewestHandlesAreTaken) {
  Open(8 * kMiB);
  const Address gradient = Gradient(4 * kMiB);
  Malloc(3 * kMiB);  // and 1 MiB of its second handle free
  Free(gradient);
  Malloc(3 * kMiB);
  const Address activation = Activation(2 * kMiB);
  EXPECT_NE(activation, 0u);
  EXPECT_EQ(Reserved(), 8 * kMiB);
}

TEST_F(TakeOverTest, ARunOfSeveralClassesServes) {
  // Gradients, activations and the optimizer's side by side.
  const Address whole = Gradient(24 * kMiB);
  Free(whole);
  const Address activation = Activation(8 * kMiB);
  const Address state =
      Malloc(8 * kMiB, kDefaultStream, LifetimeClass::kOptimizer);
  const Address gradient = Gradient(8 * kMiB);
  EXPECT_EQ(Segments(), 3);
  const long before = Calls();
  Free(activation);
  Free(gradient);
  Free(state);
  const Address parameter = Malloc(23 * kMiB);
  EXPECT_EQ(parameter, whole);
  EXPECT_TRUE(MayLeave(parameter));
  EXPECT_EQ(Calls(), before);
  ASSERT_TRUE(allocator().CheckInvariants());
  Free(Activation(1 * kMiB + 512));  // the last handle is shared with nobody
  EXPECT_EQ(Calls(), before + 3);
}

TEST_F(TakeOverTest, ARunBeginsOrEndsWithTheOwn) {
  for (const bool own_first : {true, false}) {
    Free(Gradient(16 * kMiB));
    const Address lower = own_first ? Malloc(8 * kMiB) : Gradient(8 * kMiB);
    const Address upper = own_first ? Gradient(8 * kMiB) : Malloc(8 * kMiB);
    ASSERT_EQ(upper, lower + 8 * kMiB);
    Free(upper);
    Free(lower);
    const long before = Calls();
    const Address whole = Malloc(15 * kMiB);
    EXPECT_EQ(whole, lower);
    EXPECT_TRUE(MayLeave(whole));
    EXPECT_EQ(Calls(), before);
    Free(whole);
    ASSERT_TRUE(allocator().EmptyCache());
  }
}

TEST_F(TakeOverTest, ARunMayLieInSeveralSegmentsOfThePool) {
  for (const bool mapped : {true, false}) {
    Open(256 * kMiB);
    // Two segments of 64 MiB, then one of another class.
    const Address first = Malloc(40 * kMiB), second = Malloc(40 * kMiB);
    ASSERT_EQ(second, first + 64 * kMiB);
    const Address rest[] = {Malloc(24 * kMiB), Malloc(24 * kMiB)};
    const Address gradient = Gradient(8 * kMiB);
    ASSERT_EQ(gradient, first + 128 * kMiB);
    for (Address address : {first, second, rest[0], rest[1], gradient}) {
      Free(address);
    }
    if (!mapped) {
      ASSERT_TRUE(allocator().EmptyCache());
    }
    const auto whole = allocator().Malloc(
        {100 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
    ASSERT_TRUE(whole.has_value());
    EXPECT_EQ(whole->address, first);
    EXPECT_EQ(whole->bytes, 100 * kMiB);
    ASSERT_TRUE(allocator().CheckInvariants());
    EXPECT_TRUE(allocator().Free(whole->address));
  }
}

TEST_F(TakeOverTest, GradientsTakeOverWhatActivationsLeft) {
  Free(Activation(24 * kMiB));
  const long before = Calls();
  EXPECT_TRUE(MayLeave(Gradient(24 * kMiB)));
  EXPECT_EQ(Calls(), before);
  EXPECT_EQ(allocator().Stays().of(StayReason::kEvictable), 24 * kMiB);
}

TEST_F(TakeOverTest, AnotherStreamsMemoryIsNotTakenOver) {
  const StreamId other = NewStream();
  Free(Malloc(24 * kMiB, other, kGradient));
  const long before = Calls();
  const Address activation = Activation(20 * kMiB);
  EXPECT_GT(Calls(), before);  // its memory may move, being idle
  EXPECT_FALSE(MayLeave(activation));
}

// What was recorded on another stream was waited for when it was freed.
TEST_F(TakeOverTest, ActivationsOfOtherStreamsMoveOnceTheirEventsAreOver) {
  const StreamId side = NewStream();
  const Address a = Activation(8 * kMiB);
  Use(a, 8 * kMiB, side);
  ASSERT_TRUE(allocator().RecordStream(a, side).has_value());
  Free(a);
  ASSERT_TRUE(allocator().device().SynchronizeStream(side));
  const Address b = Activation(2 * kMiB);  // and what is over is freed
  Free(b);
  const Address other = Malloc(2 * kMiB, side);
  for (int i = 0; i < 100; ++i) Use(other, 2 * kMiB, side);
  // A run of whole handles that lies in two pieces has to move.
  const Address c = Activation(2 * kMiB), d = Activation(2 * kMiB);
  Free(c);
  const long waits = cudasim_calls("cudaStreamSynchronize");
  Malloc(62 * kMiB - 2 * kMiB, kDefaultStream, kTransient);
  EXPECT_EQ(cudasim_calls("cudaStreamSynchronize"), waits);
  Free(d);
}

TEST_F(TakeOverTest, AStepThatRepeatsAsksNothingOfTheDriver) {
  // Gradients are given up, activations grow; then the other way round.
  const auto step = [&] {
    std::vector<Address> activations, gradients;
    for (int i = 1; i <= 6; ++i) activations.push_back(Activation(i * kMiB));
    for (int i = 6; i >= 1; --i) {
      gradients.push_back(Gradient((i + 1) * kMiB));
      Free(activations.back());
      activations.pop_back();
    }
    for (Address address : gradients) Free(address);
  };
  for (int i = 0; i < 8; ++i) step();
  const long before = Calls();
  const Stat segments = Of(allocator().Stats().segment);
  for (int i = 0; i < 8; ++i) step();
  EXPECT_EQ(Calls(), before);
  // None came or went, as far as anybody is told.
  EXPECT_EQ(Of(allocator().Stats().segment).allocated, segments.allocated);
  EXPECT_EQ(Of(allocator().Stats().segment).freed, segments.freed);
  EXPECT_EQ(Of(allocator().Stats().segment).peak, segments.peak);
  ASSERT_TRUE(allocator().CheckInvariants());
}

// Blocks of all classes come and go, at most 24 MiB of them.
class RandomTakeOverTest : public TakeOverTest {
 protected:
  void Steps(int steps, int checked, bool at_work) {
    std::mt19937 random(7);
    std::vector<std::pair<Address, Bytes>> held;
    Bytes live = 0;
    for (int step = 0; step < steps; ++step) {
      const auto lifetime =
          static_cast<LifetimeClass>(random() % kLifetimeClasses);
      const Bytes bytes = random() % 4 == 0 ? 512 * (1 + random() % 2000)
                                            : kMiB + 512 * (random() % 4000);
      if (!held.empty() && (live + bytes > 24 * kMiB || random() % 2 == 0)) {
        const std::size_t i = random() % held.size();
        Free(held[i].first);
        live -= held[i].second;
        held[i] = held.back();
        held.pop_back();
      } else {
        const Address address = Malloc(bytes, kDefaultStream, lifetime);
        ASSERT_NE(address, 0u);
        if (at_work) Use(address, bytes, kDefaultStream);
        held.emplace_back(address, bytes);
        live += bytes;
      }
      if (step % checked == 0) {
        if (!held.empty()) MayLeave(held.back().first);
        const Status status = allocator().CheckInvariants();
        ASSERT_TRUE(status.has_value())
            << step << ": " << status.error().message;
      }
    }
    for (const auto& [address, bytes] : held) Free(address);
  }
};

TEST_F(RandomTakeOverTest, SegmentsAreCutAndJoinedAnywhere) {
  Steps(4000, 20, /*at_work=*/true);
  EXPECT_LE(Segments(), 4 * kLifetimeClasses);
}

// What is cut off and empty serves others before new address space does.
TEST_F(RandomTakeOverTest, AddressSpaceIsUsedAgain) {
  const auto used = [&] {
    const HandleTable& table = allocator().table();
    Bytes most = 0;
    for (const SegmentView& segment : allocator().Snapshot()) {
      const Bytes region = (table.evictable_end() - table.base()) / 2;
      most = std::max(most, (segment.address - table.base()) % region);
    }
    return most;
  };
  const Address kept = Malloc(4 * kMiB);
  Steps(2000, 500, /*at_work=*/false);
  const Address first = Malloc(4 * kMiB + 512);
  const Bytes before = used();
  for (int i = 0; i < 10; ++i) Steps(2000, 500, /*at_work=*/false);
  const Address last = Malloc(5 * kMiB);
  EXPECT_LE(used(), before + 64 * kMiB);
  Free(kept);
  Free(first);
  Free(last);
}

// Segments of a few handles, requests of many: a run begins in any segment and
// ends in any other. The classes take turns, as forward, backward and the
// optimizer do. Many short lives: the segments of a pool lie side by side only
// while it grows.
TEST_F(RandomTakeOverTest, SegmentsSmallerThanRequests) {
  DeviceAllocator::Options options;
  options.segment_least = 2 * kMiB;
  std::mt19937 random(11);
  for (int life = 0; life < 100; ++life) {
    Open((32 + 32 * (random() % 2)) * kMiB, options);
    const Bytes most = allocator().limit() - 6 * kMiB;
    std::vector<std::pair<Address, Bytes>> held;
    Bytes live = 0;
    for (int turn = 0; turn < 8; ++turn) {
      const auto lifetime =
          static_cast<LifetimeClass>(random() % kLifetimeClasses);
      while (true) {
        const Bytes bytes = kMiB + 512 * (random() % (most / kMiB * 1024));
        if (live + bytes > most) break;
        const Address address = Malloc(bytes, kDefaultStream, lifetime);
        ASSERT_NE(address, 0u);
        held.emplace_back(address, bytes);
        live += bytes;
      }
      while (held.size() > random() % 3) {
        const std::size_t i = random() % held.size();
        Free(held[i].first);
        live -= held[i].second;
        held[i] = held.back();
        held.pop_back();
      }
      if (random() % 4 == 0) {
        ASSERT_TRUE(allocator().EmptyCache());
      }
      const Status status = allocator().CheckInvariants();
      ASSERT_TRUE(status.has_value()) << life << ": " << status.error().message;
    }
    for (const auto& [address, bytes] : held) Free(address);
  }
}

// Address space that activations took over is anybody's once it is empty.
TEST_F(TakeOverTest, AnEmptySegmentForgetsWhoseItWas) {
  Free(Gradient(24 * kMiB));
  const Address activation = Activation(24 * kMiB);
  ASSERT_LT(activation, allocator().table().evictable_end());
  Free(activation);
  ASSERT_TRUE(allocator().EmptyCache());
  EXPECT_EQ(Reserved(), 0u);
  std::set<Address> seen;
  for (int i = 0; i < 100 && !seen.contains(activation); ++i) {
    const Address gradient = Gradient(24 * kMiB);
    EXPECT_TRUE(MayLeave(gradient));
    seen.insert(gradient);
    Free(gradient);
    ASSERT_TRUE(allocator().EmptyCache());
  }
}

}  // namespace
}  // namespace stratalloc
