// SPDX-License-Identifier: Apache-2.0
// Tests of Planner: the uses it learns, and the pages that leave and return.
#include "tiering/engine/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "tiering/engine/leave_fixture_test.h"
#include "tiering/engine/restoration.h"

namespace stratalloc {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

constexpr int kPages = 20;

class PlannerTest : public LeaveFixture {
 protected:
  // For the pages of the plan: about half of them beside the window.
  static constexpr Bytes kCapacity = 34 * kMiB;

  void SetUp() override {
    Open(/*capacity=*/160 * kMiB, /*host_budget=*/160 * kMiB);
    ASSERT_EQ(allocator_->table().region(true, PoolKind::kLarge).handle_bytes,
              kPage);
    planner_.emplace(*allocator_);
    pages_ = Pages(kPages);
  }
  void TearDown() override {
    planner_.reset();
    LeaveFixture::TearDown();
  }
  // One operator uses `page`, and the mover looks.
  void Use(HandleRef page) {
    Note(kDefaultStream, page);
    const PageUse use{.page = page.address()};
    planner_->Note({&use, 1});
    EXPECT_TRUE(planner_->Advance());
  }
  // The first block on `page` is handed out, or the last one is freed.
  void Change(HandleRef page, bool made) {
    const PageUse use{
        .page = page.address(), .written = made, .made = made, .freed = !made};
    planner_->Note({&use, 1});
    EXPECT_TRUE(planner_->Advance());
  }
  // As many passes over `pages` as a stable cycle takes.
  void Learn(const std::vector<HandleRef>& pages) {
    for (int pass = 0; pass < 3; ++pass) {
      for (HandleRef page : pages) Use(page);
    }
    ASSERT_TRUE(planner_->WantsPlan());
  }
  // p0 again after p1, once in each pass.
  std::vector<HandleRef> WithOneShortGap() {
    std::vector<HandleRef> cycle{pages_[0], pages_[1], pages_[0]};
    cycle.insert(cycle.end(), pages_.begin() + 2, pages_.end());
    return cycle;
  }

  std::optional<Planner> planner_;
  std::vector<HandleRef> pages_;
};

TEST_F(PlannerTest, FirstPassWantsNoPlan) {
  for (HandleRef page : pages_) {
    Use(page);
    EXPECT_FALSE(planner_->WantsPlan());
  }
  EXPECT_FALSE(planner_->has_plan());
  EXPECT_THAT(planner_->NextMissing(kCapacity), IsEmpty());
}

TEST_F(PlannerTest, StableCycleIsPlannedAndKept) {
  Learn(pages_);
  EXPECT_TRUE(planner_->HasFuture());
  planner_->Plan(kCapacity);
  EXPECT_TRUE(planner_->has_plan());
  for (HandleRef page : pages_) Use(page);
  EXPECT_TRUE(planner_->has_plan());
}

TEST_F(PlannerTest, PlanIsNotWantedForEachUse) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  int wanted = 0;
  for (int pass = 0; pass < 4; ++pass) {
    for (HandleRef page : pages_) {
      Use(page);
      if (!planner_->WantsPlan()) continue;
      ++wanted;
      planner_->Plan(kCapacity);
    }
  }
  EXPECT_LE(wanted, 4) << "once in a pass";
  EXPECT_GT(wanted, 0) << "the capacity may be another one by now";
}

TEST_F(PlannerTest, CapacityForAllPagesMarksNone) {
  Learn(pages_);
  planner_->Plan(kPages * kPage + planner_->Window());
  for (HandleRef page : pages_) Use(page);
  EXPECT_THAT(planner_->Leaving(), IsEmpty());
}

TEST_F(PlannerTest, MarkedPagesAreLeavingAfterTheirUse) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  EXPECT_THAT(planner_->Leaving(), IsEmpty()) << "none was used since";
  for (HandleRef page : pages_) Use(page);
  const std::size_t must_leave =
      kPages - (kCapacity - planner_->Window()) / kPage;
  EXPECT_GE(planner_->Leaving().size(), must_leave);
  EXPECT_LT(planner_->Leaving().size(), pages_.size()) << "some fit";
}

TEST_F(PlannerTest, SmallerCapacityMarksMorePages) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  for (HandleRef page : pages_) Use(page);
  const std::size_t before = planner_->Leaving().size();
  ASSERT_TRUE(planner_->WantsPlan());
  planner_->Plan(kCapacity - 4 * kPage);
  for (HandleRef page : pages_) Use(page);
  EXPECT_EQ(planner_->Leaving().size(), before + 4);
}

TEST_F(PlannerTest, PinnedPageIsNotLeaving) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  for (HandleRef page : pages_) Use(page);
  const HandleRef pinned = planner_->Leaving().front();
  pinned.use().pins.fetch_add(1);
  EXPECT_THAT(planner_->Leaving(), Not(Contains(pinned)));
  pinned.use().pins.fetch_sub(1);
  EXPECT_THAT(planner_->Leaving(), Contains(pinned));
}

TEST_F(PlannerTest, ChosenPageIsNotNamedAgain) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  for (HandleRef page : pages_) Use(page);
  const HandleRef chosen = planner_->Leaving().front();
  ASSERT_EQ(allocator_->ChooseLeaving({&chosen, 1}).size(), 1u);
  EXPECT_THAT(planner_->Leaving(), Not(Contains(chosen)));
  chosen.use().NoteUnseen(1);
  EXPECT_THAT(planner_->Leaving(), Contains(chosen)) << "the choice is void";
}

TEST_F(PlannerTest, EvictedPageIsNotLeavingAfterItsReturn) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  for (HandleRef page : pages_) Use(page);
  const HandleRef page = planner_->Leaving().front();
  ASSERT_EQ(Evict({&page, 1}), kPage);
  EXPECT_THAT(planner_->Leaving(), Not(Contains(page)));
  ASSERT_TRUE(
      Restoration({state_, *lower_, nullptr}).Run({&page, 1}).has_value());
  ASSERT_TRUE(allocator_->DrainArrivals().has_value());
  ASSERT_EQ(page.state(), HandleState::kResident);
  page.use().NoteUnseen(1);  // is not chosen any more
  EXPECT_THAT(planner_->Leaving(), Not(Contains(page)))
      << "it came back for its next use";
}

TEST_F(PlannerTest, PageUsedAgainInItsShortGapIsNotLeaving) {
  const std::vector<HandleRef> cycle = WithOneShortGap();
  Learn(cycle);
  planner_->Plan(planner_->Window() + kPage);
  for (HandleRef page : cycle) Use(page);
  ASSERT_THAT(planner_->Leaving(), Contains(pages_[0])) << "its long gap";
  Use(pages_[0]);
  EXPECT_THAT(planner_->Leaving(), Not(Contains(pages_[0])));
}

TEST_F(PlannerTest, PlanIsFollowedAgainAfterAJump) {
  Learn(pages_);
  planner_->Plan(kCapacity);
  for (HandleRef page : pages_) Use(page);
  ASSERT_THAT(planner_->Leaving(), Not(IsEmpty()));
  const std::vector<HandleRef> planned = planner_->Leaving();
  const std::vector<HandleRef> others = Pages(16);  // of another program
  for (HandleRef page : others) Use(page);
  for (HandleRef page : pages_) Use(page);
  EXPECT_THAT(planner_->Leaving(), IsSupersetOf(planned));
}

TEST_F(PlannerTest, NextMissingIsInOrderOfUse) {
  Learn(pages_);
  ASSERT_EQ(Evict(std::vector{pages_[7], pages_[3], pages_[5]}), 3 * kPage);
  EXPECT_THAT(planner_->NextMissing(kCapacity),
              ElementsAre(pages_[3], pages_[5], pages_[7]));
  for (int i = 0; i < 5; ++i) Use(pages_[i]);
  EXPECT_THAT(planner_->NextMissing(kCapacity),
              ElementsAre(pages_[5], pages_[7], pages_[3]));
}

TEST_F(PlannerTest, NextMissingIsBoundedByBytes) {
  Learn(pages_);
  ASSERT_EQ(Evict(std::vector{pages_[3], pages_[5], pages_[7]}), 3 * kPage);
  EXPECT_THAT(planner_->NextMissing(2 * kPage),
              ElementsAre(pages_[3], pages_[5]));
  EXPECT_THAT(planner_->NextMissing(0), IsEmpty());
}

TEST_F(PlannerTest, PageUsedTwiceIsMissingOnce) {
  Learn(WithOneShortGap());
  ASSERT_EQ(Evict(std::vector{pages_[0], pages_[4]}), 2 * kPage);
  EXPECT_THAT(planner_->NextMissing(kCapacity),
              ElementsAre(pages_[0], pages_[4]));
}

TEST_F(PlannerTest, ArrivingPageIsNotMissing) {
  Learn(pages_);
  ASSERT_EQ(Evict(std::vector{pages_[3], pages_[5], pages_[7]}), 3 * kPage);
  cudasim_hold_streams(1);
  ASSERT_TRUE(
      Restoration({state_, *lower_, nullptr}).Run({&pages_[3], 1}).has_value());
  ASSERT_EQ(pages_[3].state(), HandleState::kCopyingIn);
  EXPECT_THAT(planner_->NextMissing(2 * kPage),
              ElementsAre(pages_[5], pages_[7]))
      << "its memory is not in that room";
  cudasim_hold_streams(0);
  ASSERT_TRUE(allocator_->DrainArrivals().has_value());
  EXPECT_THAT(planner_->NextMissing(2 * kPage),
              ElementsAre(pages_[5], pages_[7]));
}

TEST_F(PlannerTest, PageThatIsMadeKeepsItsRoom) {
  // p19 dies in each pass and is made before p5 is used.
  const auto turn = [&] {
    for (int i = 0; i < 3; ++i) Use(pages_[i]);
    Change(pages_[19], /*made=*/true);
    for (int i = 3; i < 10; ++i) Use(pages_[i]);
    Change(pages_[19], /*made=*/false);
  };
  for (int pass = 0; pass < 4; ++pass) turn();
  ASSERT_EQ(Evict(std::vector{pages_[1], pages_[5], pages_[19]}), 3 * kPage);
  EXPECT_THAT(planner_->NextMissing(2 * kPage), ElementsAre(pages_[1]));
  EXPECT_THAT(planner_->NextMissing(3 * kPage),
              ElementsAre(pages_[1], pages_[5]));
}

TEST_F(PlannerTest, PauseDropsNotedUsesAndEndsWithTheExpectedOne) {
  Learn(pages_);
  const PageUse use{.page = pages_[0].address()};
  planner_->Note({&use, 1});
  planner_->Pause();
  EXPECT_TRUE(planner_->paused());
  EXPECT_FALSE(planner_->Advance()) << "what was noted before is learned";
  EXPECT_TRUE(planner_->paused());
  const Address other = Malloc(1).address();
  const PageUse changes[] = {{.page = other, .made = true},
                             {.page = other},
                             {.page = other, .freed = true}};
  for (const PageUse& change : changes) {
    planner_->Note({&change, 1});
    EXPECT_TRUE(planner_->Advance());
    EXPECT_TRUE(planner_->paused()) << "the evicted pages are not needed yet";
  }
  const PageUse next{.page = pages_[1].address()};
  planner_->Note({&next, 1});
  EXPECT_TRUE(planner_->Advance());
  EXPECT_FALSE(planner_->paused());
}

TEST_F(PlannerTest, WindowHoldsTheLargestOperatorUpToEightPages) {
  const Bytes before = planner_->Window();
  EXPECT_GE(before, 2 * kPage);
  std::vector<PageUse> uses;
  for (HandleRef page : pages_) uses.push_back({.page = page.address()});
  planner_->Note(std::span(uses).first(3));
  EXPECT_EQ(planner_->Window(), before + 2 * kPage) << "three at once, not one";
  planner_->Note(std::span(uses).first(1));
  EXPECT_EQ(planner_->Window(), before + 2 * kPage);
  planner_->Note(uses);
  EXPECT_EQ(planner_->Window(), before + 7 * kPage) << "eight, not all";
  EXPECT_LE(planner_->Window(), allocator_->capacity() / 4);
}

TEST_F(PlannerTest, DistanceCountsExpectedUses) {
  Learn(pages_);
  EXPECT_EQ(planner_->Distance(pages_[0].address()), 0u);
  EXPECT_EQ(planner_->Distance(pages_[9].address()), 9u);
  EXPECT_EQ(planner_->Distance(Malloc(1).address()), Timeline::kNever);
}

}  // namespace
}  // namespace stratalloc
