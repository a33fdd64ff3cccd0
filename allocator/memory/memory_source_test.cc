// SPDX-License-Identifier: Apache-2.0
// Private pools whose memory comes from an allocator that is not ours.
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/private_pool_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kOther{0, 2};

class MemorySourceTest : public PrivatePoolTest {};

TEST_F(MemorySourceTest, MemoryOfAnotherAllocatorComesAndGoesInSegments) {
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
  EXPECT_TRUE(allocator().ContainsUnmanaged(huge + 5));
  EXPECT_FALSE(allocator().ContainsUnmanaged(huge + 16 * kMiB));
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
  EXPECT_FALSE(allocator().ContainsUnmanaged(huge));
}

TEST_F(MemorySourceTest, AnotherAllocatorsMemoryCountsAgainstTheLimit) {
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
TEST_F(MemorySourceTest, MemoryThatIsAskedForCountsAgainstTheLimit) {
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
  for (const Address address : std::vector<Address>(live_)) Free(address);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
}

// What another thread is giving back is on its way to whoever lacks it.
TEST_F(MemorySourceTest, WhatIsBeingGivenBackIsWaitedFor) {
  struct {
    std::mutex mutex;
    std::condition_variable changed;
    int asked = 0;
    int returns_after = -1;  // being asked so often
    bool there = false;
    bool giving = false;
  } card;
  const auto source = std::make_shared<const MemorySource>(MemorySource{
      [&](Bytes, StreamId) -> Result<Address> {
        std::lock_guard lock(card.mutex);
        ++card.asked;
        card.changed.notify_all();
        if (!card.there) return Fail(ErrorCode::kOutOfMemory, "empty");
        card.there = false;
        return Address{1} << 40;
      },
      [&](Address) {
        std::unique_lock lock(card.mutex);
        card.giving = true;
        card.changed.notify_all();
        card.changed.wait(lock,
                          [&] { return card.asked >= card.returns_after; });
        card.there = true;
      }});
  const MallocRequest wanted{20 * kMiB, kDefaultStream,
                             LifetimeClass::kTransient, kOwner};
  for (const PoolId pool : {kUser, kOther}) {
    allocator().CreateOrUsePool(pool, source);
  }
  Route(kOther);
  EXPECT_FALSE(allocator().Malloc(wanted).has_value());
  const int per_refusal = std::exchange(card.asked, 0);
  EndRoute(kOther);
  card.there = true;
  Route(kUser);
  Free(Malloc(20 * kMiB));
  EndRoute(kUser);
  Release(kUser);
  Release(kUser);
  // Until the request has done all that it does by itself.
  card.asked = 0;
  card.returns_after = per_refusal;
  std::thread other([&] { (void)allocator().EmptyCache(); });
  {
    std::unique_lock lock(card.mutex);
    card.changed.wait(lock, [&] { return card.giving; });
  }
  Route(kOther);
  const auto served = allocator().Malloc(wanted);
  EXPECT_TRUE(served.has_value());
  other.join();
  EndRoute(kOther);
  card.returns_after = 0;
  if (served) EXPECT_TRUE(allocator().Free(served->address).has_value());
  Release(kOther);
  Release(kOther);
  Release(kOther);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
}

// The driver's answer is of the past when it arrives.
TEST_F(MemorySourceTest, WhatCameFreeWhileTheDriverWasAskedIsAskedForAgain) {
  struct {
    int asked = 0;
    bool there = true;
    std::function<void(int)> before_the_answer = [](int) {};
  } card;
  const auto source = std::make_shared<const MemorySource>(
      MemorySource{[&](Bytes, StreamId) -> Result<Address> {
                     const bool there = std::exchange(card.there, false);
                     card.before_the_answer(++card.asked);
                     if (!there) return Fail(ErrorCode::kOutOfMemory, "empty");
                     return Address{1} << 40;
                   },
                   [&](Address) { card.there = true; }});
  const MallocRequest wanted{20 * kMiB, kDefaultStream,
                             LifetimeClass::kTransient, kOwner};
  for (const PoolId pool : {kUser, kOther}) {
    allocator().CreateOrUsePool(pool, source);
  }
  Route(kUser);
  const Address held = Malloc(20 * kMiB);
  EndRoute(kUser);
  Route(kOther);
  card.asked = 0;
  EXPECT_FALSE(allocator().Malloc(wanted).has_value());
  const int last = std::exchange(card.asked, 0);
  card.before_the_answer = [&](int asked) {
    if (asked != last) return;
    std::thread([&] {
      Free(held);
      Release(kUser);
      Release(kUser);
      (void)allocator().EmptyCache();
    }).join();
  };
  const auto served = allocator().Malloc(wanted);
  EXPECT_TRUE(served.has_value());
  if (served) EXPECT_TRUE(allocator().Free(served->address).has_value());
  EndRoute(kOther);
  Release(kOther);
  Release(kOther);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
}

TEST_F(MemorySourceTest,
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
  for (const Address address : std::vector<Address>(live_)) Free(address);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
}

// A pool that nobody uses and that holds nothing is gone at once, and with it
// whose memory it had.
TEST_F(MemorySourceTest, AnEmptyPoolIsForgottenWhenItIsReleased) {
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

}  // namespace
}  // namespace stratalloc
