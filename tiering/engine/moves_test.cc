// SPDX-License-Identifier: Apache-2.0
// Leaver, Eviction, Restoration and TieredDevice without an engine around them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/events/event_recorder.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"
#include "tiering/engine/leave_fixture_test.h"
#include "tiering/engine/leaver.h"
#include "tiering/engine/restoration.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Bytes kHandle = 2 * kMiB;
constexpr Bytes kCard = 8 * kMiB;

class MovesTest : public LeaveFixture {
 protected:
  void Open(Bytes host_budget, Bytes disk_budget = 0) {
    LeaveFixture::Open(kCard, host_budget, disk_budget);
  }
  Bytes Evict(const std::vector<HandleRef>& victims) {
    return LeaveFixture::Evict(victims);
  }

  // Bytes of the tiers below, as the events since then have it.
  static std::array<Bytes, kTiers> Heard(
      const std::vector<std::uint64_t>& since) {
    std::array<Bytes, kTiers> there{};
    const EventRecorder::Reading reading = EventRecorder::Read(since);
    for (const auto& ring : reading.rings) {
      for (const Event& event : ring.events) {
        if (event.kind == EventKind::kMove) {
          there[event.category / kTiers] -= event.bytes;
          there[event.category % kTiers] += event.bytes;
        } else if (event.kind == EventKind::kDropped) {
          there[event.category] -= event.bytes;
        }
      }
    }
    there[Raw(TierId::kDevice)] = 0;
    return there;
  }
};

TEST_F(MovesTest, WhatLeftReturnsWithItsBytes) {
  Open(16 * kMiB);
  const HandleRef one = Malloc(7), two = Malloc(8);
  EXPECT_EQ(Evict({one, two}), 2 * kHandle);
  EXPECT_EQ(one.state(), HandleState::kHost);
  EXPECT_EQ(counters_.evicted_handles, 2u);

  Restoration planned({state_, *lower_, nullptr, /*planned=*/true});
  // Named twice, in any order.
  ASSERT_TRUE(planned.Run(std::vector{two, one, two}).has_value());
  ASSERT_TRUE(allocator_->DrainArrivals().has_value());
  EXPECT_EQ(one.state(), HandleState::kResident);
  EXPECT_EQ(LastByte(one), 7);
  EXPECT_EQ(LastByte(two), 8);
  EXPECT_EQ(counters_.restored_handles, 2u);
  EXPECT_EQ(counters_.planned_handles, 2u);
  EXPECT_EQ(counters_.restored_bytes, 2 * kHandle);
}

// What the rings say of each tier below is what is there, at every step: a
// demotion to the disk and a free of what is away are heard of, too.
TEST_F(MovesTest, TheRingsHearOfEveryTier) {
  Open(kHandle, 4 * kHandle);
  ASSERT_TRUE(EventRecorder::Start({}));
  const std::vector<std::uint64_t> since = EventRecorder::Now();
  const HandleRef one = Malloc(1), two = Malloc(2);
  const auto below = [&] {
    std::array<Bytes, kTiers> there{};
    for (const HandleRef handle : {one, two}) {
      if (IsAway(handle.state())) {
        there[Raw(Residency::TierOf(handle.state()))] += handle.bytes();
      }
    }
    return there;
  };
  ASSERT_EQ(Evict({one}), kHandle);
  EXPECT_EQ(Heard(since), below());
  ASSERT_EQ(Evict({two}), kHandle);  // the host's only buffer
  EXPECT_EQ(one.state(), HandleState::kDisk);
  EXPECT_EQ(two.state(), HandleState::kHost);
  EXPECT_EQ(Heard(since), below());
  ASSERT_TRUE(
      Restoration({state_, *lower_, nullptr}).Run({&one, 1}).has_value());
  ASSERT_TRUE(allocator_->DrainArrivals().has_value());
  EXPECT_EQ(Heard(since), below());
  ASSERT_TRUE(allocator_->Free(blocks_.back()).has_value());  // two, away
  blocks_.pop_back();
  lower_->CollectDropped(*allocator_);
  EXPECT_EQ(Heard(since), below());
  EXPECT_EQ(Heard(since), (std::array<Bytes, kTiers>{}));
  ASSERT_EQ(Evict({one}), kHandle);  // cleanly: its chunk is still true
  EXPECT_EQ(one.state(), HandleState::kDisk);
  EXPECT_EQ(Heard(since), below());
  EventRecorder::Stop();
}

TEST_F(MovesTest, HandleUsedWhileItWaitsStays) {
  Open(16 * kMiB);
  const HandleRef one = Malloc(1), two = Malloc(2);
  Leaver leaver({state_, *lower_, all_});
  Status why;
  const auto tally = std::make_shared<LeaveTally>();
  ASSERT_EQ(leaver.Choose(std::vector{one, two}, Below::kEither, tally, &why),
            2 * kHandle);
  EXPECT_EQ(one.state(), HandleState::kResident) << "it may be used";
  one.use().NoteOperator(1, false, 1000, kBurstTicks);
  while (!leaver.idle()) {
    leaver.Step();
    leaver.Await(kSecond);
  }
  EXPECT_EQ(one.state(), HandleState::kResident);
  EXPECT_EQ(two.state(), HandleState::kHost);
  EXPECT_EQ(tally->left.load(), kHandle);
  EXPECT_EQ(tally.use_count(), 1) << "nothing of it is under way";
}

TEST_F(MovesTest, WhatNoTierTakesStaysAndTheReasonIsKept) {
  Open(kHandle);
  const HandleRef one = Malloc(1), two = Malloc(2);
  EXPECT_EQ(Evict({one, two}), kHandle);
  EXPECT_EQ(one.state(), HandleState::kHost);
  EXPECT_EQ(two.state(), HandleState::kResident);
  EXPECT_THAT(state_.refusal, HasSubstr("host budget of 2.00 MiB is spent"));
  EXPECT_EQ(LastByte(two), 2);
}

TEST_F(MovesTest, ARestoreAsksForTheRoomItLacksUnlessItMayNot) {
  Open(16 * kMiB);
  const HandleRef away = Malloc(9);
  ASSERT_EQ(Evict({away}), kHandle);
  std::vector<HandleRef> others;
  for (Bytes used = 0; used < kCard; used += kHandle) {
    others.push_back(Malloc(3));
  }

  const Status free_only =
      Restoration({state_, *lower_, nullptr}).Run({&away, 1});
  ASSERT_FALSE(free_only.has_value());
  EXPECT_EQ(free_only.error().code, ErrorCode::kOutOfMemory);
  EXPECT_FALSE(state_.under_pressure.load()) << "nobody was refused";

  std::vector<Bytes> asked;
  const auto in_vain = [&](Bytes bytes, bool*) {
    asked.push_back(bytes);
    return Bytes{0};
  };
  const Status refused =
      Restoration({state_, *lower_, in_vain}).Run({&away, 1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(asked, ElementsAre(kHandle));
  EXPECT_TRUE(state_.under_pressure.load());
  EXPECT_EQ(away.state(), HandleState::kHost);

  const auto evicts = [&](Bytes, bool*) { return Evict({others[0]}); };
  ASSERT_TRUE(
      Restoration({state_, *lower_, evicts}).Run({&away, 1}).has_value());
  ASSERT_TRUE(allocator_->DrainArrivals().has_value());
  EXPECT_EQ(LastByte(away), 9);
  EXPECT_EQ(others[0].state(), HandleState::kHost);
  EXPECT_EQ(counters_.planned_handles, 0u);
}

// While this thread waits for room another one reads the page from the disk.
TEST_F(MovesTest, PageThatIsLostDuringAWaitForRoomIsAnError) {
  Open(16 * kMiB);
  const HandleRef page = Malloc(9);
  ASSERT_EQ(Evict({page}), kHandle);
  std::vector<HandleRef> others;
  for (Bytes used = 0; used < kCard; used += kHandle) {
    others.push_back(Malloc(3));
  }
  const auto loses = [&](Bytes, bool*) {
    const Bytes left = Evict({others[0]});
    PhysicalMemory* memory = allocator_->TakeFree(kHandle).value();
    EXPECT_EQ(allocator_->BeginRestore({&page, 1}, {&memory, 1}).value(), 1u);
    allocator_->AbortRestore(page, HandleState::kPoisoned);
    return left;
  };
  const Status lost = Restoration({state_, *lower_, loses}).Run({&page, 1});
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(lost.error().message, HasSubstr("were damaged and are lost"));
  EXPECT_EQ(page.state(), HandleState::kPoisoned);
}

TEST_F(MovesTest, ADeviceThatIsRefusedSaysWhyAndIsNoMover) {
  Open(16 * kMiB);
  EXPECT_TRUE(state_.CheckTakesPart().has_value());
  state_.Refuse(Error{ErrorCode::kDevice, "not today"});
  const Status refused = state_.CheckTakesPart();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("moves: not today. Name"));
  EXPECT_EQ(state_.copy_out, kDefaultStream) << "its streams are given back";
}

}  // namespace
}  // namespace stratalloc
