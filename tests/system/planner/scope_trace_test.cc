// SPDX-License-Identifier: Apache-2.0
#include "tests/system/planner/scope_trace.h"

#include <gtest/gtest.h>

namespace stratalloc {
namespace {

constexpr auto In = [](int s) {
  return ScopeTrace::Entered(static_cast<ScopeId>(s));
};

TEST(ScopeTrace, FollowsTheOrderOfLastTime) {
  ScopeTrace trace;
  trace.Learn(In(1), {10}, In(2));
  trace.Learn(In(2), {20, 21}, In(3));
  trace.Learn(In(3), {30}, In(1));
  EXPECT_EQ(trace.Expect(In(1), 100, 3),
            (std::vector<Address>{10, 20, 21, 30}));
}

TEST(ScopeTrace, StopsAtTheBounds) {
  ScopeTrace trace;
  trace.Learn(In(1), {10, 11, 12}, In(2));
  trace.Learn(In(2), {20}, In(1));
  EXPECT_EQ(trace.Expect(In(1), 2, 9), (std::vector<Address>{10, 11}));
  EXPECT_EQ(trace.Expect(In(1), 9, 1), (std::vector<Address>{10, 11, 12}));
}

TEST(ScopeTrace, NamesATiedWeightOnce) {
  ScopeTrace trace;
  trace.Learn(In(1), {10}, In(2));
  trace.Learn(In(2), {10, 20}, ScopeTrace::kNoStep);
  EXPECT_EQ(trace.Expect(In(1), 9, 9), (std::vector<Address>{10, 20}));
}

TEST(ScopeTrace, RelearnsWhatChanged) {
  ScopeTrace trace;
  trace.Learn(In(1), {10}, In(2));
  trace.Learn(In(1), {11}, In(1));
  EXPECT_EQ(trace.Expect(In(1), 9, 4), (std::vector<Address>{11}));
  EXPECT_TRUE(trace.Expect(In(7), 9, 9).empty());
}

}  // namespace
}  // namespace stratalloc
