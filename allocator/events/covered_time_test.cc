// SPDX-License-Identifier: Apache-2.0
// Time that overlapping intervals cover, against a count of its instants.
#include "allocator/events/covered_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace stratalloc {
namespace {

TEST(CoveredTimeTest, IntervalsOfOneBatchCountOnce) {
  CoveredTime time;
  time.Add(10, 20);
  time.Add(10, 25);
  time.Add(10, 40);
  EXPECT_EQ(time.ns(), 30u);
}

TEST(CoveredTimeTest, DisjointIntervalsAddUp) {
  CoveredTime time;
  time.Add(10, 20);
  time.Add(30, 35);
  EXPECT_EQ(time.ns(), 15u);
}

TEST(CoveredTimeTest, ALongIntervalAddsTheGapsBetweenShorterOnes) {
  CoveredTime time;
  time.Add(10, 20);
  time.Add(30, 35);
  time.Add(50, 60);
  time.Add(5, 70);
  EXPECT_EQ(time.ns(), 65u);
}

TEST(CoveredTimeTest, EmptyIntervalsAddNothing) {
  CoveredTime time;
  time.Add(10, 10);
  time.Add(12, 11);
  EXPECT_EQ(time.ns(), 0u);
}

TEST(CoveredTimeTest, MoreGapsThanAreKeptStillAddUp) {
  CoveredTime time;
  constexpr std::int64_t kMany = 4 * CoveredTime::kMost;
  for (std::int64_t i = 0; i < kMany; ++i) time.Add(10 * i, 10 * i + 4);
  EXPECT_EQ(time.ns(), static_cast<std::uint64_t>(4 * kMany));
  const std::uint64_t before = time.ns();
  time.Add(0, 10 * kMany);  // older gaps are not known, and none counts twice
  EXPECT_GE(time.ns(), before);
  EXPECT_LE(time.ns(), static_cast<std::uint64_t>(10 * kMany));
}

TEST(CoveredTimeTest, FullTableLosesNothingToMergedOrEmptyIntervals) {
  CoveredTime time;
  constexpr std::int64_t kAll = CoveredTime::kMost;
  for (std::int64_t i = 1; i <= kAll; ++i) time.Add(10 * i, 10 * i + 4);
  time.Add(3, 3);
  time.Add(10 * kAll + 3, 10 * kAll + 5);
  EXPECT_EQ(time.ns(), static_cast<std::uint64_t>(4 * kAll + 1));
  time.Add(0, 10 * kAll + 10);
  EXPECT_EQ(time.ns(), static_cast<std::uint64_t>(10 * kAll + 10));
}

TEST(CoveredTimeTest, RandomIntervalsCoverTheirUnionInAnyOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
    for (std::size_t i = 0; i + 2 < CoveredTime::kMost; ++i) {
      const std::int64_t began = random() % 500;
      intervals.emplace_back(began, began + random() % 30);
    }
    if (round % 2 == 0) {
      std::sort(intervals.begin(), intervals.end(),
                [](auto& a, auto& b) { return a.second < b.second; });
    }
    CoveredTime time;
    std::set<std::int64_t> instants;
    for (const auto& [began, ended] : intervals) {
      time.Add(began, ended);
      for (std::int64_t at = began; at < ended; ++at) instants.insert(at);
      ASSERT_EQ(time.ns(), instants.size());
    }
  }
}

}  // namespace
}  // namespace stratalloc
