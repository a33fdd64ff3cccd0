// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/victims.h"

#include <gtest/gtest.h>

namespace stratalloc {
namespace {

Candidate Used(std::uint64_t id, std::uint32_t last, std::uint32_t previous,
               bool clean = false) {
  Candidate candidate{id, 2 * kMiB, last, {}, clean};
  if (previous != 0) candidate.intervals[0] = last - previous;
  return candidate;
}

TEST(Victims, WithoutHistoryTheLeastRecentlyUsedLeavesFirst) {
  auto chosen = ChooseVictims({Used(1, 90, 0), Used(2, 10, 0), Used(3, 50, 0)},
                              100, 2 * kMiB);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(chosen[0].id, 2u);
}

TEST(Victims, InACycleTheLayerJustUsedLeavesFirst) {
  // Four layers, period 100, now inside layer 3: 0 is needed next.
  auto chosen = ChooseVictims(
      {Used(0, 210, 110), Used(1, 235, 135), Used(2, 260, 160)}, 285, 6 * kMiB);
  ASSERT_EQ(chosen.size(), 3u);
  EXPECT_EQ(chosen[0].id, 2u);
  EXPECT_EQ(chosen[1].id, 1u);
  EXPECT_EQ(chosen[2].id, 0u);
}

TEST(Victims, AMissedPredictionGrowsColder) {
  const Candidate missed = Used(1, 100, 90);
  EXPECT_LT(Coldness(missed, 120), Coldness(missed, 500));
  EXPECT_EQ(Coldness(missed, 110), 0u);
}

TEST(Victims, AUseAheadOfTheClockIsTheLatest) {
  EXPECT_EQ(Coldness(Used(1, 103, 0), 101), 0u);
  EXPECT_EQ(Coldness(Used(1, 100, 0), 100 + (3u << 30)), 3u << 30)
      << "unused for long";
}

TEST(Victims, AmongEqualsTheCleanLeaves) {
  auto chosen =
      ChooseVictims({Used(1, 10, 0, false), Used(2, 10, 0, true)}, 50, 1);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(chosen[0].id, 2u);
}

TEST(Victims, TakesEveryoneWhenTheTargetIsOutOfReach) {
  EXPECT_EQ(ChooseVictims({Used(1, 1, 0), Used(2, 2, 0)}, 5, kGiB).size(), 2u);
  EXPECT_TRUE(ChooseVictims({}, 5, kGiB).empty());
  EXPECT_TRUE(ChooseVictims({Used(1, 1, 0)}, 5, 0).empty());
}

Candidate With(std::array<std::uint32_t, 4> intervals,
               std::uint32_t last = 10'000) {
  Candidate candidate;
  candidate.last_use = last;
  candidate.intervals = intervals;
  return candidate;
}

TEST(Victims, WhatFollowedAnEarlierIntervalFollowsThisOne) {
  EXPECT_EQ(PredictedInterval(With({})), 0u);
  EXPECT_EQ(PredictedInterval(With({100})), 100u);
  EXPECT_EQ(PredictedInterval(With({100, 103, 99, 101})), 100u);
  // After a forward its backward comes soon, after that the next forward late.
  EXPECT_EQ(PredictedInterval(With({900, 100})), 100u);
  EXPECT_EQ(PredictedInterval(With({100, 900, 101, 880})), 900u);
  EXPECT_EQ(PredictedInterval(With({900, 100, 890, 102})), 100u);
  // Forward, backward, optimizer.
  EXPECT_EQ(PredictedInterval(With({500, 300, 100, 505})), 100u);
  EXPECT_EQ(PredictedInterval(With({100, 500, 300, 101})), 300u);
  // Never the same twice.
  EXPECT_EQ(PredictedInterval(With({100, 500, 2000, 9000})), 100u);
}

TEST(Victims, ColdForGoodIsLongerUnusedThanEver) {
  EXPECT_FALSE(IsCold(With({}), 1u << 30)) << "too little is known";
  EXPECT_FALSE(IsCold(With({100}), 1u << 30));
  const Candidate trained = With({100, 900, 101, 880});
  EXPECT_EQ(ColdAfter(trained), 900u);
  EXPECT_FALSE(IsCold(trained, 10'000 + 900));
  EXPECT_TRUE(IsCold(trained, 10'000 + 901));
  EXPECT_FALSE(IsCold(trained, 10'000 - 5)) << "used ahead of the clock";
}

}  // namespace
}  // namespace stratalloc
