// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/operators.h"

#include <gtest/gtest.h>

namespace stratalloc::core {
namespace {

void Enter(const char* name) {
  ASSERT_TRUE(EnterOperator(0, kDefaultStream, name, {}).has_value());
}

TEST(OperatorsTest, InsideAnOperatorUntilTheOutermostLeaves) {
  EXPECT_FALSE(InsideOperator());
  Enter("outer");
  Enter("inner");
  LeaveOperator();
  EXPECT_TRUE(InsideOperator());
  LeaveOperator();
  EXPECT_FALSE(InsideOperator());
}

// The operators in a call are outermost ones, but not the last to hold
// something.
TEST(OperatorsTest, InsideACallUntilTheOutermostLeaves) {
  Enter("a function");
  LeaveIntoCall();
  EXPECT_TRUE(InsideOperator());
  Enter("an operator of its own");
  LeaveOperator();
  EXPECT_TRUE(InsideOperator());
  Enter("a function in it");
  LeaveIntoCall();
  LeaveCall();
  EXPECT_TRUE(InsideOperator());
  LeaveCall();
  EXPECT_FALSE(InsideOperator());
}

}  // namespace
}  // namespace stratalloc::core
