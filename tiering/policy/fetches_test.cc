// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/fetches.h"

#include <gtest/gtest.h>

#include <map>

namespace stratalloc {
namespace {

using Where = Fetches::Where;

// A timeline in step before the first of `cycle`, and the pages' states.
class FetchesTest : public ::testing::Test {
 protected:
  void Learn(const std::vector<PageUse>& cycle) {
    for (int turn = 0; turn < 2; ++turn) {
      for (const PageUse& use : cycle) timeline_.Add(use);
    }
    ASSERT_EQ(timeline_.Length(), cycle.size());
    std::vector<std::uint8_t> marks;
    for (const PageUse& use : cycle) marks.push_back(use.leaves);
    timeline_.Mark(marks);
  }
  void Evicted(std::vector<Address> pages) {
    for (Address page : pages) states_[page] = {Where::kEvicted, 1};
  }
  std::vector<Address> Next(Fetches::Limits limits) {
    return fetches_.Next(timeline_, limits, [&](Address page) {
      const auto it = states_.find(page);
      return it != states_.end() ? it->second
                                 : Fetches::State{Where::kResident, 1};
    });
  }

  Timeline timeline_;
  Fetches fetches_;
  std::map<Address, Fetches::State> states_;  // the others are resident
};

constexpr PageUse Use(Address page) { return {.page = page}; }
constexpr PageUse Leaving(Address page) {
  return {.page = page, .leaves = true};
}
constexpr PageUse Free(Address page) { return {.page = page, .freed = true}; }

TEST_F(FetchesTest, EvictedPagesComeInOrderWhileThereIsRoom) {
  Learn({Use(1), Use(2), Use(3), Use(4), Use(5)});
  Evicted({5, 2, 4});
  EXPECT_EQ(Next({.room = 2}), (std::vector<Address>{2, 4}));
  EXPECT_EQ(Next({.room = 9}), (std::vector<Address>{2, 4, 5}));
  EXPECT_TRUE(Next({.room = 0}).empty());
}

TEST_F(FetchesTest, CreatedPageKeepsItsRoom) {
  Learn({Use(1), Use(9), Use(2), Free(9), Use(3)});
  Evicted({2, 3});
  states_[9] = {Where::kFree, 1};
  EXPECT_EQ(Next({.room = 2}), (std::vector<Address>{2}));
  EXPECT_EQ(Next({.room = 3}), (std::vector<Address>{2, 3}));
}

TEST_F(FetchesTest, FetchedPageTakesRoomFromNowOn) {
  // While page 9 is live there is room for one more, behind it for two.
  Learn({Use(9), Use(1), Free(9), Use(4), Use(2), Use(3)});
  Evicted({2, 3});
  states_[9] = {Where::kFree, 1};
  EXPECT_EQ(Next({.room = 2}), (std::vector<Address>{2}));
}

TEST_F(FetchesTest, PageThatLeavesMakesRoomAfterTheDelay) {
  // Page 9 is created in the room that page 1 leaves.
  Learn({Leaving(1), Use(2), Use(9), Use(3), Free(9)});
  Evicted({3});
  states_[9] = {Where::kFree, 1};
  EXPECT_EQ(Next({.room = 1, .delay = 2}), (std::vector<Address>{3}));
  EXPECT_TRUE(Next({.room = 1, .delay = 3}).empty());
}

TEST_F(FetchesTest, FreedPageMakesRoomAfterTheDelay) {
  // Page 8 is created in the room of page 9.
  Learn({Use(9), Free(9), Use(1), Use(8), Use(3), Free(8)});
  Evicted({3});
  states_[8] = {Where::kFree, 1};
  EXPECT_EQ(Next({.room = 1, .delay = 2}), (std::vector<Address>{3}));
  EXPECT_TRUE(Next({.room = 1, .delay = 3}).empty());
}

TEST_F(FetchesTest, PageThatReturnsAfterItsLeaveIsNotFetchedYet) {
  Learn({Leaving(1), Use(2), Use(3), Use(1), Use(4), Use(5)});
  Evicted({4});
  EXPECT_EQ(Next({.room = 2}), (std::vector<Address>{4}));
}

TEST_F(FetchesTest, LargePageThatDoesNotFitEndsTheSearch) {
  Learn({Use(1), Use(2), Use(3)});
  Evicted({2, 3});
  states_[2].bytes = 4;
  EXPECT_TRUE(Next({.room = 3}).empty()) << "order is kept";
  EXPECT_EQ(Next({.room = 4}), (std::vector<Address>{2}));
}

TEST_F(FetchesTest, LimitsEndTheSearch) {
  Learn({Use(1), Use(2), Use(3), Use(4)});
  Evicted({1, 2, 3, 4});
  EXPECT_EQ(Next({.room = 9, .uses = 3}), (std::vector<Address>{1, 2, 3}));
  EXPECT_EQ(Next({.room = 9, .bytes = 2}), (std::vector<Address>{1, 2}));
}

TEST_F(FetchesTest, FetchesWhilePositionIsHeldGoOn) {
  Learn({Use(1), Use(2), Use(3)});
  Evicted({1, 2, 3});
  const std::vector<Address> before = Next({.room = 9});
  ASSERT_FALSE(before.empty());
  timeline_.Add(Use(77));
  ASSERT_FALSE(timeline_.InStep());
  EXPECT_EQ(Next({.room = 9}), before);
}

TEST_F(FetchesTest, MadePageTakesRoomThoughAnotherHasItsPlace) {
  // Page 9 is made in each turn. Its address is in use for something else now.
  for (int turn = 0; turn < 2; ++turn) {
    timeline_.Add(Use(1));
    timeline_.Add({.page = 9, .written = true, .made = true});
    timeline_.Add(Use(9));
    timeline_.Add(Use(2));
    if (turn == 0) timeline_.Add({.page = 9, .freed = true});
    timeline_.Add(Use(3));
  }
  timeline_.Add(Use(1));
  Evicted({2});
  EXPECT_TRUE(Next({.room = 1}).empty()) << "the page that is made needs it";
  EXPECT_EQ(Next({.room = 2}), std::vector<Address>{2});
}

TEST_F(FetchesTest, FetchesWithoutFutureAreNone) {
  Evicted({1, 2, 3});
  for (Address page : {1, 2, 3}) timeline_.Add(Use(page));
  EXPECT_TRUE(Next({.room = 9}).empty());
}

}  // namespace
}  // namespace stratalloc
