// SPDX-License-Identifier: Apache-2.0
// What is said of a request that is made again, and that it comes true.
#include "allocator/explain/trials.h"

#include <gtest/gtest.h>

#include <vector>

#include "allocator/private_pool_fixture_test.h"
#include "allocator/values/reclaimer.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;

// Evicts nothing: what may leave is the copy's business.
class NoRoom final : public Reclaimer {
 public:
  bool Reclaim(DeviceIndex, MemoryRequest&) override { return false; }
  Bytes ReclaimCold(DeviceIndex, Bytes) override { return 0; }
  void OnPressure(DeviceIndex, Bytes, Bytes) override {}
  const char* LastRefusal(DeviceIndex) override { return ""; }
  Bytes RoomBelow() override { return room; }

  Bytes room = 0;
};

class TrialsTest : public PrivatePoolTest {
 protected:
  MallocRequest Request(Bytes bytes) {
    return {bytes, kDefaultStream, LifetimeClass::kTransient, kOwner};
  }
  Tried Try(Bytes bytes, const Trial& trial) {
    return Try(RefusedRequest{.request = Request(bytes)}, trial);
  }
  Tried Try(const RefusedRequest& refused, const Trial& trial) {
    const auto tried = allocator().Try(refused, {&trial, 1});
    EXPECT_TRUE(tried.has_value()) << tried.error().message;
    return tried ? tried->front() : Tried{};
  }
  Address Transient(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  }
  bool IsServed(Bytes bytes) {
    const auto block = allocator().Malloc(Request(bytes));
    if (block) live_.push_back(block->address);
    return block.has_value();
  }
  NoRoom reclaimer_;
};

TEST_F(TrialsTest, WithNothingDoneItIsAsItWas) {
  Transient(40 * kMiB);
  const Tried tried = Try(30 * kMiB, {});
  EXPECT_FALSE(tried.served);
  EXPECT_EQ(tried.missing, 6 * kMiB);
  EXPECT_EQ(tried.fits, 0u) << "nobody asked";
  EXPECT_TRUE(Try(24 * kMiB, {}).served);
}

TEST_F(TrialsTest, BlocksThatEnd) {
  const Address small = Transient(10 * kMiB), large = Transient(30 * kMiB);
  EXPECT_FALSE(Try(40 * kMiB, {.frees = {small}}).served);
  EXPECT_TRUE(Try(40 * kMiB, {.frees = {large}}).served);
  EXPECT_TRUE(Try(64 * kMiB, {.frees = {small, large}}).served);
  EXPECT_FALSE(IsServed(40 * kMiB)) << "they were not freed";
  Free(large);
  EXPECT_TRUE(IsServed(40 * kMiB));
}

TEST_F(TrialsTest, AHigherLimitAndWhatTheCardHas) {
  allocator().SetFraction(0.5);
  Transient(20 * kMiB);
  EXPECT_FALSE(Try(20 * kMiB, {.more_limit = 8 * kMiB - 1}).served);
  EXPECT_TRUE(Try(20 * kMiB, {.more_limit = 8 * kMiB}).served);
  EXPECT_FALSE(Try(50 * kMiB, {.more_limit = 64 * kMiB}).served)
      << "the card has 64 MiB";
  allocator().SetFraction(40.0 / 64);
  EXPECT_TRUE(IsServed(20 * kMiB));
}

TEST_F(TrialsTest, OthersOnTheCardGiveMemoryBack) {
  cudasim_take_memory(0, 40 * kMiB);
  EXPECT_FALSE(Try(30 * kMiB, {.more_card = 5 * kMiB}).served);
  EXPECT_TRUE(Try(30 * kMiB, {.more_card = 6 * kMiB}).served);
  cudasim_take_memory(0, 0);
}

TEST_F(TrialsTest, WhatFitsIsServedAndALittleMoreIsNot) {
  Transient(41 * kMiB + 512);
  const Tried tried = Try(30 * kMiB, {.measure = true});
  EXPECT_FALSE(tried.served);
  EXPECT_GT(tried.fits, 20 * kMiB);
  EXPECT_TRUE(Try(tried.fits, {}).served);
  EXPECT_FALSE(Try(tried.fits + 64 * 1024, {}).served);
  EXPECT_TRUE(IsServed(tried.fits));
}

TEST_F(TrialsTest, NothingFitsOnAFullCard) {
  Transient(64 * kMiB);
  EXPECT_EQ(Try(30 * kMiB, {.measure = true}).fits, 0u);
}

TEST_F(TrialsTest, WhatLeavesNeedsRoomBelow) {
  allocator().SetReclaimer(&reclaimer_);
  const Address evictable =
      Malloc(40 * kMiB, kDefaultStream, LifetimeClass::kPersistent);
  EXPECT_NE(evictable, 0u);
  EXPECT_FALSE(Try(30 * kMiB, {}).served);
  EXPECT_FALSE(Try(30 * kMiB, {.more_room = 4 * kMiB}).served);
  EXPECT_TRUE(Try(30 * kMiB, {.more_room = 6 * kMiB}).served);
  reclaimer_.room = 6 * kMiB;
  EXPECT_TRUE(Try(30 * kMiB, {}).served);
  allocator().SetReclaimer(nullptr);
}

// What an operator uses and is there stays; the rest must fit beside all that.
TEST_F(TrialsTest, AnOperatorNeedsItsOperandsAtOnce) {
  allocator().SetReclaimer(&reclaimer_);
  reclaimer_.room = 64 * kMiB;
  Transient(50 * kMiB);
  const Address operand =
      Malloc(4 * kMiB, kDefaultStream, LifetimeClass::kPersistent);
  RefusedRequest refused{.request = Request(4 * kMiB), .is_operator = true};
  refused.operands = {operand, operand + kHandle};
  EXPECT_TRUE(Try(refused, {}).served) << "they are there";
  allocator().SetFraction(0.5);
  const Tried tried = Try(refused, {});
  EXPECT_FALSE(tried.served);
  EXPECT_EQ(tried.missing, 54 * kMiB - 32 * kMiB);
  EXPECT_TRUE(Try(refused, {.more_limit = tried.missing}).served);
  allocator().SetReclaimer(nullptr);
}

TEST_F(TrialsTest, PartsAddUp) {
  Transient(9 * kMiB);
  cudasim_take_memory(0, 8 * kMiB);
  const auto parts = allocator().Parts();
  ASSERT_TRUE(parts.has_value());
  const Fragmentation& held = parts->held;
  EXPECT_EQ(held.allocated + held.pending + held.stranded + held.releasable +
                held.in_private_pools,
            held.reserved);
  EXPECT_LE(held.reserved, parts->ours);
  EXPECT_EQ(parts->ours + parts->card.free + 8 * kMiB, parts->card.total);
  EXPECT_EQ(parts->allowed, 64 * kMiB);
  EXPECT_FALSE(parts->capturing);
  cudasim_take_memory(0, 0);
}

}  // namespace
}  // namespace stratalloc
