// SPDX-License-Identifier: Apache-2.0
// The order of the rungs, and where a climb ends.
#include "allocator/ladder/ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/ladder/ladder_fixture_test.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;

TEST_F(LadderTest, TheRungsInTheirOrderAndWhereAFailureEnds) {
  std::vector<std::string> rungs;
  for (const Rung& rung : Ladder()) {
    rungs.push_back(std::string(rung.name) + (rung.failure_ends ? " !" : ""));
  }
  EXPECT_THAT(
      rungs,
      ElementsAre("search", "ask others to free", "queue behind who waits",
                  "restore away space", "grow !", "collect old segments",
                  "buy a segment", "borrow", "release cached",
                  "buy after the release", "borrow after the release",
                  "move within the MemPool !", "evict what is cold !",
                  "wait for events !", "release all", "outlast releases !",
                  "evict", "ask others again", "refuse"));
}

TEST_F(LadderTest, ARequestThatNothingServesIsRefusedAfterAllOfIt) {
  const Result<AllocatedBlock> answer = Climb(attempt_, device_);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(answer.error().message, "no memory");
  EXPECT_THAT(
      device_.asked,
      ElementsAre(
          "search first", "free memory",              // cached
          "is unmanaged", "is crowded", "find away",  // queue, restore
          "under pressure", "grow to limit", "fetch unmanaged",  // grow, buy
          "has threshold", "borrow", "above threshold",          // borrow
          "release 4.00 MiB", "search released to limit",        // release
          "fetch unmanaged", "borrow",                           // again
          "wait for frees", "search again",                      // wait
          "search limit", "release 6.00 MiB",                    // release all
          "releases", "fetch unmanaged", "search after releases",  // outlast
          "could hold", "reclaim (inside)", "search limit (inside)",
          "release 6.00 MiB (inside)",              // evict
          "free memory",                            // ask others again
          "cannot fit", "release all", "refuse"));  // refuse
}

TEST_F(LadderTest, ANestedRequestSearchesGrowsAndReleasesOnly) {
  Nest();
  device_.crowded = device_.pressure = device_.frees = true;
  device_.away = 8 * kMiB;
  EXPECT_FALSE(Climb(attempt_, device_).has_value());
  EXPECT_THAT(device_.asked,
              ElementsAre("search first", "free memory", "search cached",
                          "is unmanaged", "grow to limit", "fetch unmanaged",
                          "has threshold", "borrow", "above threshold",
                          "release 4.00 MiB", "search released to limit",
                          "fetch unmanaged", "borrow", "search again, a retry",
                          "releases", "fetch unmanaged",
                          "search after releases", "refuse"));
}

TEST_F(LadderTest, WhileAStreamCapturesTheReclaimerIsNotAsked) {
  device_.captures = device_.crowded = device_.pressure = true;
  EXPECT_FALSE(Climb(attempt_, device_).has_value());
  EXPECT_THAT(device_.asked,
              ElementsAre("search first", "free memory", "is unmanaged",
                          "grow to limit", "fetch unmanaged", "has threshold",
                          "borrow", "above threshold", "release 4.00 MiB",
                          "search released to limit", "fetch unmanaged",
                          "borrow", "wait for frees", "search again, a retry",
                          "release all", "releases", "fetch unmanaged",
                          "search after releases", "refuse"));
}

TEST_F(LadderTest, UnderPressureTheEmergencyThresholdHoldsUntilNothingIsCold) {
  device_.pressure = true;
  EXPECT_FALSE(Climb(attempt_, device_).has_value());
  EXPECT_THAT(
      device_.asked,
      ElementsAre(
          "search first", "free memory", "is unmanaged", "is crowded",
          "find away", "under pressure", "grow to emergency", "fetch unmanaged",
          "has threshold", "borrow", "above threshold", "release 4.00 MiB",
          "search released to emergency", "fetch unmanaged", "borrow",
          "reclaim cold 6.00 MiB (inside)", "search beyond emergency (inside)",
          "wait for frees", "search again", "search limit", "release 6.00 MiB",
          "releases", "fetch unmanaged", "search after releases", "could hold",
          "reclaim (inside)", "search limit (inside)",
          "release 6.00 MiB (inside)", "free memory", "cannot fit",
          "release all", "refuse"));
}

TEST_F(LadderTest, TheFirstAnswerEndsTheClimb) {
  device_.serves = "grow to limit";
  const Result<AllocatedBlock> answer = Climb(attempt_, device_);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->address, kServedAt);
  EXPECT_EQ(device_.asked.back(), "grow to limit");
}

// What the driver fails in, and what the device is asked last.
struct Failure {
  const char* fails;
  const char* last;
};

class DriverFailsTest : public LadderTest,
                        public testing::WithParamInterface<Failure> {};

TEST_P(DriverFailsTest, ItsErrorIsTheAnswer) {
  device_.pressure = std::string(GetParam().fails).ends_with("emergency");
  device_.fails = GetParam().fails;
  const Result<AllocatedBlock> answer = Climb(attempt_, device_);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kDevice);
  EXPECT_EQ(answer.error().message, "CUDA driver error: it failed");
  EXPECT_EQ(device_.asked.back(), GetParam().last);
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, DriverFailsTest,
    testing::Values(Failure{"grow to limit", "grow to limit"},
                    Failure{"fetch unmanaged", "fetch unmanaged"},
                    // Native's order: who lends is asked first.
                    Failure{"search released to limit", "borrow"},
                    Failure{"search beyond emergency",
                            "search beyond emergency (inside)"},
                    Failure{"search again", "search again"},
                    Failure{"search limit", "search limit"},
                    Failure{"search after releases", "search after releases"}));

}  // namespace
}  // namespace stratalloc
