// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/timeline.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "tiering/policy/timeline_fixture_test.h"

namespace stratalloc {
namespace {

constexpr auto kNever = Timeline::kNever;

std::vector<Address> Next(const Timeline& timeline, std::size_t count) {
  std::vector<Address> pages;
  for (std::size_t i = 0; i < count && timeline.HasFuture(); ++i) {
    pages.push_back(timeline.Expected(i).page);
  }
  return pages;
}

TEST(Timeline, NewPagesHaveNoFuture) {
  Timeline timeline(64);
  AddAll(timeline, Range(1, 20));
  EXPECT_FALSE(timeline.HasFuture());
  EXPECT_FALSE(timeline.InStep());
  EXPECT_EQ(timeline.Length(), 0u);
  EXPECT_EQ(timeline.StableLength(), 0u);
  EXPECT_EQ(timeline.Distance(1), kNever);
  EXPECT_EQ(timeline.Distance(99), kNever);
  EXPECT_EQ(timeline.Age(1), 18u);
  EXPECT_EQ(timeline.Age(99), kNever);
  EXPECT_EQ(timeline.jumps(), 0u);
}

TEST(Timeline, RepeatedCyclePredictsItsOrder) {
  Timeline timeline(64);
  AddAll(timeline, Range(1, 11) + std::vector<Address>{1, 2, 3});
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.Length(), 10u);
  EXPECT_EQ(Next(timeline, 9),
            (std::vector<Address>{4, 5, 6, 7, 8, 9, 10, 1, 2}));
  EXPECT_EQ(timeline.Expected(10).page, 4u) << "the future repeats";
  EXPECT_EQ(timeline.Distance(4), 0u);
  EXPECT_EQ(timeline.Distance(10), 6u);
  EXPECT_EQ(timeline.Distance(3), 9u) << "the use just added comes last";
}

TEST(Timeline, CycleIsStableAfterItsLength) {
  Timeline timeline(64);
  AddAll(timeline, Range(1, 11) + Range(1, 10));
  EXPECT_EQ(timeline.StableLength(), 0u);
  AddAll(timeline, {10});
  EXPECT_EQ(timeline.StableLength(), 10u);
}

TEST(Timeline, RepeatedPageIsOneUse) {
  Timeline timeline(64);
  timeline.Add({.page = 1});
  timeline.Add({.page = 1, .written = true});
  timeline.Add({.page = 1});
  AddAll(timeline, {2, 1});
  EXPECT_EQ(timeline.now(), 3u);
  EXPECT_EQ(timeline.Length(), 2u);
  AddAll(timeline, {2});
  EXPECT_TRUE(timeline.Expected(1).page == 2u);
  AddAll(timeline, {});
  EXPECT_FALSE(timeline.Expected(0).written) << "the newest use of 1";
}

TEST(Timeline, WriteOfARepetitionCounts) {
  Timeline timeline(64);
  timeline.Add({.page = 1});
  timeline.Add({.page = 1, .written = true});
  AddAll(timeline, {2, 3, 2, 3});
  AddAll(timeline, {1});
  AddAll(timeline, {2, 3, 2, 3});
  EXPECT_FALSE(timeline.Expected(0).written);
  Timeline other(64);
  AddAll(other, {7, 1});
  other.Add({.page = 1, .written = true});
  AddAll(other, {2, 7});
  EXPECT_EQ(other.Expected(0).page, 1u);
  EXPECT_TRUE(other.Expected(0).written);
}

TEST(Timeline, AccumulationFollowsTheWholeStep) {
  // Four rounds of 40 pages, then the optimizer's 60.
  const auto round = Range(100, 140), optimizer = Range(200, 260);
  const auto step = round + round + round + round + optimizer;
  Timeline timeline;
  AddAll(timeline, round + round + round);
  EXPECT_EQ(timeline.Length(), 40u) << "rounds only, as far as is known";
  AddAll(timeline, round + optimizer + step);
  const std::uint64_t jumps = timeline.jumps();
  AddAll(timeline, step + step);
  EXPECT_EQ(timeline.Length(), step.size());
  EXPECT_EQ(timeline.StableLength(), step.size());
  EXPECT_EQ(timeline.jumps(), jumps) << "no round is taken for another";
  AddAll(timeline, round + round);
  EXPECT_EQ(timeline.Distance(200), 80u);
}

TEST(Timeline, UnknownPageBetweenKeepsTheCycle) {
  Timeline timeline;
  const auto cycle = Range(1, 101);
  AddAll(timeline, cycle + cycle + Range(1, 51));
  const std::uint64_t jumps = timeline.jumps();
  AddAll(timeline, {1000});
  EXPECT_FALSE(timeline.InStep());
  EXPECT_EQ(timeline.Expected(0).page, 51u) << "it holds its position";
  AddAll(timeline, {51});
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.StableLength(), 101u);
  EXPECT_EQ(timeline.jumps(), jumps);
}

TEST(Timeline, ReplacedAndOmittedPagesAreSlips) {
  Timeline timeline;
  const auto cycle = Range(1, 101);
  AddAll(timeline, cycle + cycle + Range(1, 51));
  const std::uint64_t jumps = timeline.jumps();
  AddAll(timeline, {1000, 52});  // in place of 51
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.StableLength(), 100u);
  AddAll(timeline, {53, 60});
  EXPECT_EQ(timeline.Expected(0).page, 54u) << "one use proves nothing";
  AddAll(timeline, {61});
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.Expected(0).page, 62u);
  EXPECT_EQ(timeline.StableLength(), 94u);
  EXPECT_EQ(timeline.jumps(), jumps);
}

TEST(Timeline, PassBackwardsCloseByIsNoSlip) {
  // Each use of the way back has one equal use close by, and no more.
  Timeline timeline;
  const auto cycle = Range(1, 41);
  AddAll(timeline, cycle + cycle + Range(1, 31));
  AddAll(timeline, {29, 28, 27, 26, 25, 24, 23, 22});
  EXPECT_EQ(timeline.Expected(0).page, 31u) << "it holds its position";
  AddAll(timeline, {31});
  EXPECT_TRUE(timeline.InStep());
}

TEST(Timeline, SlipIsPreferredToALongerMatchElsewhere) {
  Timeline timeline;
  const auto cycle = Range(1, 101) + Range(500, 600) +
                     std::vector<Address>{49, 50, 52} + Range(600, 700);
  AddAll(timeline, cycle + cycle + Range(1, 51));
  AddAll(timeline, {52});
  EXPECT_EQ(timeline.Expected(0).page, 53u);
}

// Two equal uses close by say less than a long match elsewhere.
TEST(Timeline, LostPositionIsFoundByTheLongerMatch) {
  Timeline timeline(1024);
  const auto list = Range(1, 51);
  const auto cycle = list + list + Range(200, 260) + list + Range(100, 150);
  AddAll(timeline, cycle + cycle + cycle + Range(300, 320));
  ASSERT_FALSE(timeline.InStep());
  AddAll(timeline, list + list);
  EXPECT_EQ(Next(timeline, 1), std::vector<Address>{200});
}

TEST(Timeline, FullMatchIsPreferredToASlip) {
  Timeline timeline;
  const auto round = Range(1, 101);
  const std::vector<Address> optimizer = {5, 1001, 6, 1002, 7, 1003};
  AddAll(timeline,
         round + optimizer + Range(500, 600) + round + round + round + round);
  ASSERT_EQ(timeline.Expected(0).page, 1u);
  AddAll(timeline, {5});
  EXPECT_EQ(timeline.Expected(0).page, 1001u);
}

TEST(Timeline, FreeIsNotTakenForAUse) {
  Timeline timeline;
  AddAll(timeline, {50, 1});
  timeline.Add({.page = 50, .freed = true});
  AddAll(timeline, {70, 50, 1});
  EXPECT_TRUE(timeline.Expected(0).freed);
  AddAll(timeline, {50});
  EXPECT_NE(timeline.Expected(0).page, 70u);
}

TEST(Timeline, ForeignUseIsHeldThenFollowed) {
  Timeline timeline;
  const auto a = Range(1, 201), b = Range(1001, 1201);
  AddAll(timeline, b + a + a + Range(1, 101));
  AddAll(timeline, {1001});
  EXPECT_EQ(timeline.Expected(0).page, 101u) << "one use proves nothing";
  AddAll(timeline, {1002, 1003, 1004, 1005, 1006, 1007, 1008});
  EXPECT_EQ(timeline.Expected(0).page, 101u);
  AddAll(timeline, {1009});
  EXPECT_TRUE(timeline.InStep()) << "its patience is over";
  EXPECT_EQ(timeline.Expected(0).page, 1010u);
}

TEST(Timeline, ModelsInTurnAreOneCycle) {
  Timeline timeline;
  const auto a = Range(1, 201), b = Range(1001, 1101);
  const auto turn = a + a + a + b + b;
  AddAll(timeline, turn + turn);
  const std::uint64_t jumps = timeline.jumps();
  AddAll(timeline, turn + turn);
  EXPECT_EQ(timeline.StableLength(), turn.size());
  EXPECT_EQ(timeline.jumps(), jumps);
}

// The second model goes on alone. Its passes match all that are remembered.
TEST(Timeline, OneOfTwoModelsIsFollowedAlone) {
  Timeline timeline;
  const auto second = Range(100, 122);
  std::vector<Address> cycle = Range(1, 40);
  for (int pass = 0; pass < 6; ++pass) cycle = cycle + second;
  AddAll(timeline, cycle + cycle + cycle);
  for (int pass = 0; pass < 3; ++pass) AddAll(timeline, second);
  EXPECT_EQ(timeline.StableLength(), 22u);
  EXPECT_EQ(timeline.Distance(1), kNever);
}

TEST(Timeline, EvaluationBetweenEpochsIsFoundAgain) {
  Timeline timeline;
  const auto forward = Range(1, 101);
  auto backward = forward;
  std::reverse(backward.begin(), backward.end());
  const auto step = forward + backward + Range(500, 600);
  std::vector<Address> epoch;
  for (int i = 0; i < 5; ++i) epoch = epoch + step;
  epoch = epoch + forward + forward + forward;
  AddAll(timeline, epoch + epoch);
  const std::uint64_t jumps = timeline.jumps();
  AddAll(timeline, epoch + epoch);
  EXPECT_EQ(timeline.jumps(), jumps);
  EXPECT_EQ(timeline.StableLength(), epoch.size() - 5)
      << "a step's backward begins with the page its forward ended with";
}

TEST(Timeline, SharedPagesAreToldApartByTheirPast) {
  // Page 7 comes after 1, 2 and 3, and something else follows each time.
  const std::vector<Address> cycle = {1, 7, 10, 2, 7, 20, 3, 7, 30};
  Timeline timeline(64);
  AddAll(timeline, cycle + cycle + std::vector<Address>{1, 7});
  EXPECT_EQ(timeline.Expected(0).page, 10u);
  AddAll(timeline, {10, 2, 7});
  EXPECT_EQ(timeline.Expected(0).page, 20u);
  EXPECT_EQ(timeline.Distance(7), 2u);
}

TEST(Timeline, FreedPageHasNoNextUse) {
  Timeline timeline(64);
  auto step = [&] {
    AddAll(timeline, {1, 2});
    timeline.Add({.page = 50, .written = true});
    AddAll(timeline, {3, 50, 4});
    timeline.Add({.page = 50, .freed = true});
    AddAll(timeline, {5});
  };
  step(), step();
  AddAll(timeline, {1, 2});
  EXPECT_EQ(timeline.Distance(50), 0u);
  timeline.Add({.page = 50, .written = true});
  AddAll(timeline, {3, 50});
  EXPECT_EQ(timeline.Distance(50), kNever) << "dead until it is freed";
  AddAll(timeline, {4});
  EXPECT_TRUE(timeline.Expected(0).freed);
  EXPECT_EQ(timeline.Length(), 8u);
}

// A step that reads 1 to 20, makes `grads`, one behind each, and frees them.
void Step(Timeline& timeline, const std::vector<Address>& grads) {
  for (Address page : Range(1, 21)) timeline.Add({.page = page});
  for (std::size_t i = 0; i < grads.size(); ++i) {
    timeline.Add({.page = grads[i], .written = true, .made = true});
    timeline.Add({.page = 20 - i});
  }
  for (Address page : grads) timeline.Add({.page = page, .written = true});
  for (Address page : grads) timeline.Add({.page = page, .freed = true});
}

TEST(Timeline, MadePageIsTheOneThatIsExpectedAtAnyAddress) {
  Timeline timeline;
  Step(timeline, {100, 101, 102, 103});
  Step(timeline, {100, 101, 102, 103});
  const std::uint64_t jumps = timeline.jumps(), length = timeline.Length();
  Step(timeline, {102, 100, 300, 301});
  Step(timeline, {400, 401, 102, 103});
  EXPECT_EQ(timeline.jumps(), jumps);
  EXPECT_EQ(timeline.Length(), length);
  EXPECT_TRUE(timeline.InStep());
  AddAll(timeline, Range(1, 21));
  EXPECT_EQ(timeline.Expected(0).page, 400u) << "the address it had last";
  EXPECT_TRUE(timeline.Expected(0).made);
  EXPECT_TRUE(timeline.IsDead(400));
  timeline.Add({.page = 7000, .written = true, .made = true});
  EXPECT_FALSE(timeline.IsDead(7000));
  EXPECT_EQ(timeline.Distance(7000), 7u) << "behind the others' births";
}

TEST(Timeline, LivePageIsNotMadeAgain) {
  Timeline timeline;
  Step(timeline, {100, 101});
  Step(timeline, {100, 101});
  AddAll(timeline, Range(1, 21));
  timeline.Add({.page = 100, .written = true, .made = true});
  AddAll(timeline, {20});
  // A third page, which no step had.
  timeline.Add({.page = 101, .written = true, .made = true});
  timeline.Add({.page = 500, .written = true, .made = true});
  AddAll(timeline, {19});
  EXPECT_FALSE(timeline.IsDead(100));
  EXPECT_FALSE(timeline.IsDead(101));
  EXPECT_EQ(timeline.Expected(0).page, 100u);
}

TEST(Timeline, FreeThatComesLateKeepsThePosition) {
  Timeline timeline;
  Step(timeline, {100, 101, 102});
  Step(timeline, {100, 101, 102});
  const std::uint64_t jumps = timeline.jumps();
  for (Address page : Range(1, 21)) timeline.Add({.page = page});
  for (std::size_t i = 0; i < 3; ++i) {
    timeline.Add({.page = 100 + i, .written = true, .made = true});
    timeline.Add({.page = 20 - i});
  }
  AddAll(timeline, {100, 101, 102, 1, 2});
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.Expected(0).page, 3u);
  timeline.Add({.page = 102, .freed = true});
  timeline.Add({.page = 100, .freed = true});
  timeline.Add({.page = 101, .freed = true});
  AddAll(timeline, {3});
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.Expected(0).page, 4u);
  EXPECT_EQ(timeline.jumps(), jumps);
}

TEST(Timeline, UseThatIsLeftOutIsNoJumpHoweverWellThePastMatches) {
  // The second round lacked page 50, and so does the fourth.
  Timeline timeline;
  const auto whole = Range(1, 101), less = Range(1, 50) + Range(51, 101);
  AddAll(timeline, whole + less + whole + whole + Range(1, 50));
  const std::uint64_t jumps = timeline.jumps();
  ASSERT_EQ(timeline.Length(), 100u);
  AddAll(timeline, {51});
  EXPECT_EQ(timeline.jumps(), jumps);
  EXPECT_EQ(timeline.Length(), 99u);
}

TEST(Timeline, MarkOfAMadePageIsTakenOver) {
  Timeline timeline;
  Step(timeline, {100, 101});
  Step(timeline, {100, 101});
  std::vector<std::uint8_t> marks(timeline.Length(), 0);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    marks[i] = timeline.Expected(i).made;
  }
  timeline.Mark(marks);
  AddAll(timeline, Range(1, 21));
  EXPECT_TRUE(timeline.Add({.page = 900, .written = true, .made = true}));
}

TEST(Timeline, FreeWithoutAUseIsIgnored) {
  Timeline timeline(64);
  timeline.Add({.page = 1, .freed = true});
  EXPECT_EQ(timeline.now(), 0u);
  AddAll(timeline, {1});
  timeline.Add({.page = 1, .freed = true});
  timeline.Add({.page = 1, .freed = true});
  EXPECT_EQ(timeline.now(), 2u);
}

TEST(Timeline, UsesInStepTakeOverTheMarks) {
  Timeline timeline;
  const auto cycle = Range(1, 101);
  AddAll(timeline, cycle + cycle);
  std::vector<std::uint8_t> marks(timeline.Length(), 0);
  marks[9] = marks[50] = 1;
  timeline.Mark(marks);
  for (int round = 0; round < 3; ++round) {
    for (Address page : cycle) {
      EXPECT_EQ(timeline.Add({.page = page}), page == 10 || page == 51);
    }
  }
  AddAll(timeline, {1, 1000});  // in place of 2
  AddAll(timeline, Range(3, 10));
  EXPECT_TRUE(timeline.Expected(0).leaves);
  EXPECT_TRUE(timeline.Add({.page = 10})) << "after a slip as well";
  timeline.ClearMarks();
  EXPECT_FALSE(timeline.Expected(41 - 1).leaves);
}

TEST(Timeline, PositionThatFellOutOfTheRingIsFoundAgain) {
  Timeline timeline(64);
  const auto cycle = Range(1, 21);
  // The second round follows the first, and the fourth begins 60 uses behind.
  AddAll(timeline, cycle + Range(100, 140) + cycle + Range(100, 110));
  EXPECT_EQ(timeline.Length(), 60u);
  AddAll(timeline, Range(200, 208));  // 60 + 8 uses are more than the ring has
  EXPECT_FALSE(timeline.HasFuture());
  AddAll(timeline, cycle);
  EXPECT_EQ(timeline.Length(), 38u);
  EXPECT_EQ(timeline.Expected(0).page, 100u);
}

// Pages are made at any free address, used and freed: a live one is found by
// its address, whatever page it was taken for.
TEST(Timeline, LivePagesKeepTheirAgeThroughAnyChanges) {
  constexpr Address kAddresses = 24;
  Timeline timeline(128);
  std::mt19937 random(11);
  std::map<Address, std::uint64_t> newest;  // live: position of its last use
  for (int i = 0; i < 50'000; ++i) {
    const Address page = 1 + random() % kAddresses;
    const bool lives = newest.contains(page);
    const bool freed = lives && random() % 4 == 0;
    timeline.Add({.page = page, .made = !lives, .freed = freed});
    if (freed) {
      newest.erase(page);
    } else {
      newest[page] = timeline.now() - 1;
    }
    for (Address at = 1; at <= kAddresses; ++at) {
      const auto live = newest.find(at);
      if (live == newest.end()) {
        ASSERT_TRUE(timeline.IsDead(at) || timeline.Age(at) == kNever);
        continue;
      }
      const std::uint64_t age = timeline.now() - 1 - live->second;
      if (age >= timeline.capacity()) continue;
      ASSERT_EQ(timeline.Age(at), age) << "step " << i << ", page " << at;
      ASSERT_FALSE(timeline.IsDead(at));
    }
  }
}

TEST(Timeline, UniformRandomUsesAgreeWithABruteForce) {
  Timeline timeline(64);
  std::mt19937 random(7);
  std::deque<PageUse> last;  // at most 64
  for (int i = 0; i < 20'000; ++i) {
    PageUse use{.page = random() % 12, .freed = random() % 16 == 0};
    const auto before = timeline.now();
    timeline.Add(use);
    if (timeline.now() != before) last.push_back(use);
    if (last.size() > 64) last.pop_front();
    ASSERT_LE(timeline.Length(), 64u);
    for (Address page = 0; page < 12; ++page) {
      std::uint64_t age = kNever, distance = kNever;
      for (std::size_t k = 0; k < last.size(); ++k) {
        if (last[k].page == page) age = last.size() - 1 - k;
      }
      ASSERT_EQ(timeline.Age(page), age);
      for (std::size_t k = timeline.Length(); k-- > 0;) {
        const PageUse expected = timeline.Expected(k);
        const PageUse& at = last[last.size() - timeline.Length() + k];
        ASSERT_EQ(expected.page, at.page);
        ASSERT_EQ(expected.freed, at.freed);
        if (at.page == page) distance = at.freed ? kNever : k;
      }
      ASSERT_EQ(timeline.Distance(page), distance);
    }
  }
}

}  // namespace
}  // namespace stratalloc
