// SPDX-License-Identifier: Apache-2.0
// Free handles change pools where they lie.
#include <gtest/gtest.h>

#include <set>

#include "allocator/device_allocator_fixture_test.h"

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
  static long Calls() {
    long calls = 0;
    for (const char* name : {"cuMemCreate", "cuMemRelease", "cuMemMap",
                             "cuMemUnmap", "cuMemSetAccess"}) {
      calls += cudasim_calls(name);
    }
    return calls;
  }
  bool MayLeave(Address address) {
    MutexLock lock(allocator().mutex());
    bool listed = false;
    HandleRef at;
    allocator().ForEachEvictableLocked([&](HandleRef handle) {
      if (handle.address() > address ||
          address - handle.address() >= handle.bytes()) {
        return;
      }
      listed = true;
      at = handle;
    });
    HandleRegion* region = allocator().table().RegionOf(address);
    const HandleRef handle{region, region->IndexOf(address)};
    const bool leaves = allocator().BeginLeavingLocked(handle);
    if (leaves) allocator().CancelLeavingLocked(handle);
    EXPECT_EQ(leaves, listed);
    return leaves;
  }
  Bytes Reserved() {
    return static_cast<Bytes>(
        allocator().Stats().reserved_bytes.stats[0].current);
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
  for (int i = 0; i < 8; ++i) step();
  EXPECT_EQ(Calls(), before);
  ASSERT_TRUE(allocator().CheckInvariants());
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
