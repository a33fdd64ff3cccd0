// SPDX-License-Identifier: Apache-2.0
//
// Where work fits on an engine: gaps, a shared bus, priorities.

#include "tests/simulator/cudasim/busy_times.h"

#include <gtest/gtest.h>

#include "tests/simulator/cudasim/priority_times.h"

namespace cudasim {
namespace {

TEST(BusyTimesTest, FillsGaps) {
  BusyTimes busy;
  EXPECT_EQ(busy.Take(100, 50), 100);
  EXPECT_EQ(busy.Take(0, 100), 0);   // fits before
  EXPECT_EQ(busy.Take(0, 10), 150);  // after both
  EXPECT_EQ(busy.Take(200, 10), 200);
  EXPECT_EQ(busy.Take(120, 40), 160);  // exactly between
  EXPECT_EQ(busy.Take(150, 1), 210);
  EXPECT_EQ(busy.Take(5, 0), 5);
  busy.Forget(211);
  EXPECT_EQ(busy.Take(0, 5), 0);
}

TEST(PriorityTimesTest, WorkTakenFromOthersIsAddedBehindThem) {
  PriorityTimes times;
  EXPECT_EQ(times.Place(0, 0, 100).end, 100);
  EXPECT_EQ(times.Place(0, 200, 10).start, 200);
  EXPECT_EQ(times.Place(-1, 40, 30).start, 40);
  EXPECT_EQ(times.Place(0, 0, 70).start, 130) << "30 behind the first 100";
  EXPECT_EQ(times.Place(-1, 90, 20).start, 90);
  EXPECT_EQ(times.Place(0, 0, 5).start, 230) << "20 behind all of them";
}

// Each moment of the engine is taken from one priority alone.
TEST(PriorityTimesTest, WorkOfThreePrioritiesTakesItsOwnLength) {
  PriorityTimes times;
  times.Place(0, 0, 100);
  times.Place(-1, 0, 50);
  times.Place(-2, 0, 80);
  EXPECT_EQ(times.Place(-1, 0, 1).start, 130) << "80 and 50";
  EXPECT_EQ(times.Place(0, 0, 1).start, 231) << "80, 51 and 100";
}

TEST(BusyTimesTest, SharedBusMakesAnOperationLongerThanItsGap) {
  BusyTimes down;
  EXPECT_EQ(down.Place(0, 100, {.own_rate = 30}).end, 100);
  EXPECT_EQ(down.Place(100, 100, {.own_rate = 20}).end, 200);
  BusyTimes up;
  const BusyTimes::Shared shared = {&down, 10, 35};
  EXPECT_EQ(up.Place(150, 50, shared).end, 200) << "35 - 20 are enough";
  // In the gap before, at 5 of 10, the work would end at 160.
  const BusyTimes::Placed placed = up.Place(20, 100, shared);
  EXPECT_EQ(placed.start, 200);
  EXPECT_EQ(placed.end, 300);
  EXPECT_EQ(up.Place(20, 70, shared).end, 130) << "40 at half, then 30";
}

}  // namespace
}  // namespace cudasim
