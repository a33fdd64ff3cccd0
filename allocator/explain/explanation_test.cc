// SPDX-License-Identifier: Apache-2.0
// What is said of a request, and that it comes true.
#include "allocator/explain/explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "allocator/private_pool_fixture_test.h"
#include "allocator/values/reclaimer.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr Bytes kHandle = 2 * kMiB;
constexpr Bytes kSmall = kMiB + 512;

// Evicts nothing: what it would be asked for is what counts.
class NoRoom final : public Reclaimer {
 public:
  bool Reclaim(DeviceIndex, MemoryRequest&) override { return false; }
  Bytes ReclaimCold(DeviceIndex, Bytes) override { return 0; }
  void OnPressure(DeviceIndex, Bytes, Bytes) override {}
  const char* LastRefusal(DeviceIndex) override { return ""; }
  Bytes RoomBelow() override { return room; }
  Bytes RoomOn(TierId tier) override {
    return tier == TierId::kHost ? std::min(room, host) : room;
  }

  Bytes room = 26 * kMiB, host = 64 * kMiB;
};

class ExplanationTest : public PrivatePoolTest {
 protected:
  MallocRequest Request(Bytes bytes, LifetimeClass lifetime,
                        StreamId stream = kDefaultStream) {
    return {bytes, stream, lifetime, kOwner};
  }
  Explanation Explain(Bytes bytes,
                      LifetimeClass lifetime = LifetimeClass::kTransient,
                      StreamId stream = kDefaultStream) {
    const auto said = allocator().Explain(Request(bytes, lifetime, stream));
    EXPECT_TRUE(said.has_value()) << said.error().message;
    return said.value_or(Explanation{});
  }
  Address Transient(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  }
  bool IsServed(const MallocRequest& request) {
    const auto block = allocator().Malloc(request);
    if (block) live_.push_back(block->address);
    return block.has_value();
  }
  NoRoom reclaimer_;
};

TEST_F(ExplanationTest, AnEmptyCardServes) {
  const Explanation said = Explain(10 * kMiB + 1);
  EXPECT_EQ(said.by, ServedBy::kNow);
  EXPECT_EQ(said.size, 10 * kMiB + 512);
  EXPECT_TRUE(said.certain());
  EXPECT_EQ(said.Remedy(), "");
}

TEST_F(ExplanationTest, MoreThanTheCardIsMissing) {
  Transient(40 * kMiB);
  const Explanation said = Explain(30 * kMiB);
  EXPECT_EQ(said.by, ServedBy::kNothing);
  EXPECT_EQ(said.missing, 6 * kMiB);
  EXPECT_FALSE(said.limit_helps);
  EXPECT_TRUE(said.frees.empty()) << "40 MiB is no less than 6";
  EXPECT_EQ(said.Remedy(), "Free as much, or ask for less.");
}

TEST_F(ExplanationTest, AHigherLimitIsSaidWhereTheCardHasIt) {
  allocator().SetFraction(0.5);
  Transient(20 * kMiB);
  const Explanation said = Explain(20 * kMiB);
  EXPECT_EQ(said.missing, 8 * kMiB);
  EXPECT_TRUE(said.limit_helps);
  EXPECT_THAT(said.Remedy(), HasSubstr("raise gpu_limit"));
  allocator().SetFraction(40.0 / 64);
  EXPECT_EQ(Explain(20 * kMiB).by, ServedBy::kNow);
  allocator().SetFraction(40.0 / 64 - 1e-9);
  EXPECT_EQ(Explain(20 * kMiB).by, ServedBy::kNothing);
}

// Another process has what the limit would allow.
TEST_F(ExplanationTest, AFullCardIsNotHelpedByALimit) {
  cudasim_take_memory(0, 40 * kMiB);
  const Explanation said = Explain(30 * kMiB);
  EXPECT_EQ(said.missing, 6 * kMiB);
  EXPECT_FALSE(said.limit_helps);
  EXPECT_FALSE(IsServed(Request(30 * kMiB, LifetimeClass::kTransient)));
  cudasim_take_memory(0, 0);
}

TEST_F(ExplanationTest, SmallBlocksThatKeepHandlesAreNamed) {
  std::vector<Address> large;
  for (int i = 0; i < 8; ++i) {
    large.push_back(Transient(3 * kHandle - kSmall));
    Transient(kSmall);  // in the last handle of what came before
  }
  for (const Address block : large) Free(block);
  const Explanation said = Explain(52 * kMiB);
  EXPECT_EQ(said.by, ServedBy::kNothing);
  EXPECT_EQ(said.missing, 2 * kHandle);
  ASSERT_EQ(said.frees.size(), 2u);
  EXPECT_EQ(said.freed_bytes(), 2 * kSmall);
  EXPECT_EQ(said.frees[0].charge.scope, kOwner.scope);
  EXPECT_THAT(said.Remedy(), HasSubstr("handles that are free otherwise"));
  EXPECT_FALSE(IsServed(Request(52 * kMiB, LifetimeClass::kTransient)));
  Free(said.frees[0].address);
  EXPECT_EQ(Explain(52 * kMiB).by, ServedBy::kNothing) << "the other one, too";
  Free(said.frees[1].address);
  EXPECT_TRUE(IsServed(Request(52 * kMiB, LifetimeClass::kTransient)));
}

// The device lock is held while they are tried, so of a list that would help
// nobody the first 64 blocks are tried alone.
TEST_F(ExplanationTest, ALongListOfBlocksIsNotTriedToItsEnd) {
  constexpr Bytes kPairs = 80, kHandles = 256;
  Open(kHandles * kHandle);
  std::vector<Address> large;
  for (Bytes i = 0; i < kPairs; ++i) {
    large.push_back(Transient(3 * kHandle - kSmall));
    Transient(kSmall);
  }
  for (const Address block : large) Free(block);
  constexpr Bytes kFree = kHandles - kPairs;
  EXPECT_EQ(Explain((kFree + 2) * kHandle).frees.size(), 2u);
  EXPECT_EQ(Explain((kFree + 64) * kHandle).frees.size(), 64u);
  const Explanation more = Explain((kFree + 65) * kHandle);
  EXPECT_EQ(more.missing, 65 * kHandle);
  EXPECT_TRUE(more.frees.empty());
  EXPECT_LE(more.searches, 70u);
}

TEST_F(ExplanationTest, WhatAnotherStreamUsesIsWaitedFor) {
  const StreamId side = NewStream();
  const Address used = Transient(50 * kMiB);
  cudasim_hold_streams(1);
  Use(used, kMiB, side);
  ASSERT_TRUE(allocator().RecordStream(used, side).has_value());
  Free(used);
  EXPECT_EQ(Explain(40 * kMiB).by, ServedBy::kWaiting);
  EXPECT_EQ(Explain(60 * kMiB).by, ServedBy::kWaiting) << "not in one piece";
  EXPECT_EQ(Explain(65 * kMiB).by, ServedBy::kNothing);
  cudasim_hold_streams(0);
  EXPECT_TRUE(IsServed(Request(60 * kMiB, LifetimeClass::kTransient)));
}

TEST_F(ExplanationTest, EvictionIsSaidOnlyWhereSomebodyEvicts) {
  Transient(20 * kMiB);
  Malloc(30 * kMiB);
  EXPECT_EQ(Explain(40 * kMiB).by, ServedBy::kNothing);
  allocator().SetReclaimer(&reclaimer_);
  const Explanation said = Explain(40 * kMiB);
  EXPECT_EQ(said.by, ServedBy::kEviction);
  EXPECT_FALSE(said.certain());
  EXPECT_EQ(said.leaves, 26 * kMiB);
  EXPECT_EQ(said.may_leave, 30 * kMiB);
  EXPECT_EQ(said.Remedy(), "") << "the tiers below have room";
  reclaimer_.room = 20 * kMiB;
  EXPECT_THAT(Explain(40 * kMiB).Remedy(), HasSubstr("Room for 6.00 MiB more"));
  const Explanation refused = Explain(45 * kMiB);
  EXPECT_EQ(refused.by, ServedBy::kNothing);
  EXPECT_EQ(refused.missing, 2 * kMiB) << "of whole handles";
}

TEST_F(ExplanationTest, WhatIsPinnedDoesNotLeave) {
  const Address pinned = Malloc(30 * kMiB);
  allocator().SetReclaimer(&reclaimer_);
  EXPECT_EQ(Explain(40 * kMiB).by, ServedBy::kEviction);
  ASSERT_TRUE(allocator().Share(pinned).has_value());
  EXPECT_EQ(Explain(40 * kMiB).by, ServedBy::kNothing);
}

// The 64th of the card that is left to others.
TEST_F(ExplanationTest, TheHeadroomIsTakenLast) {
  allocator_.reset();
  Open(256 * kMiB);
  allocator().SetReclaimer(&reclaimer_);
  Transient(252 * kMiB);
  EXPECT_FALSE(IsServed(Request(8 * kMiB, LifetimeClass::kTransient)));
  allocator().FollowCard();
  const Bytes headroom = CardRoom::HeadroomOf(256 * kMiB, kHandle);
  ASSERT_EQ(headroom, 4 * kMiB);
  ASSERT_EQ(allocator().most() - allocator().limit(), headroom);
  EXPECT_EQ(Explain(4 * kMiB).by, ServedBy::kHeadroom);
  allocator().SetReclaimer(nullptr);
  EXPECT_EQ(Explain(4 * kMiB).by, ServedBy::kNothing) << "nobody takes it";
  allocator().SetReclaimer(&reclaimer_);
  ASSERT_TRUE(allocator().RaiseLimit());
  EXPECT_EQ(Explain(4 * kMiB).by, ServedBy::kNow);
}

// Programs of four classes on two streams: everything that is said of a request
// is what the request meets, and the copy changes nothing.
TEST_F(ExplanationTest, WhatIsSaidComesTrue) {
  const StreamId other = NewStream();
  int refused = 0, named = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    for (int step = 0; step < 60; ++step) {
      if (!live_.empty() && random() % 5 < 2) {
        Free(live_[random() % live_.size()]);
        continue;
      }
      constexpr Bytes kMost[] = {4096, 2 * kMiB, 24 * kMiB};
      const Bytes bytes = 1 + random() % kMost[random() % 3];
      const auto request =
          Request(bytes, LifetimeClass(random() % kLifetimeClasses),
                  random() % 2 == 0 ? kDefaultStream : other);
      const Explanation said = Explain(bytes, request.lifetime, request.stream);
      ASSERT_TRUE(said.certain());
      const bool serves = said.by != ServedBy::kNothing;
      ASSERT_EQ(IsServed(request), serves)
          << "seed " << seed << " step " << step << ": "
          << ServedByName(said.by) << ", " << said.missing;
      if (serves) continue;
      ++refused;
      ASSERT_GT(said.missing, 0u);
      if (said.frees.empty()) continue;
      ++named;
      ASSERT_LT(said.freed_bytes(), said.missing);
      for (const BlockView& block : said.frees) Free(block.address);
      ASSERT_TRUE(IsServed(request)) << "seed " << seed << " step " << step;
    }
    ASSERT_TRUE(allocator().CheckInvariants().has_value());
    while (!live_.empty()) Free(live_.back());
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(named, 10);
}

// Room on the disk is none for what a rule keeps off it.
TEST_F(ExplanationTest, RoomOfATierIsForWhatMayGoThere) {
  allocator().SetReclaimer(&reclaimer_);
  std::vector<Address> ruled;
  for (int i = 0; i < 4; ++i) {
    ruled.push_back(Malloc(4 * kHandle));
    allocator().SetRule(ruled.back(), {.disk = false});
  }
  Transient(24 * kMiB);
  reclaimer_.room = 64 * kMiB;
  Explanation said = Explain(16 * kMiB);
  EXPECT_EQ(said.by, ServedBy::kEviction);
  EXPECT_TRUE(said.has_room());
  reclaimer_.host = 2 * kHandle;
  said = Explain(16 * kMiB);
  EXPECT_EQ(said.by, ServedBy::kEviction);
  EXPECT_FALSE(said.has_room());
  EXPECT_EQ(said.room_below, 2 * kHandle);
  EXPECT_NE(said.Remedy(), "");
  for (const Address block : ruled) allocator().SetRule(block, {});
  EXPECT_TRUE(Explain(16 * kMiB).has_room());
}

}  // namespace
}  // namespace stratalloc
