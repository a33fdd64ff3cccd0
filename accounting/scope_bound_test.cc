// SPDX-License-Identifier: Apache-2.0
// The bound of the table of scope names, in a process of its own: it stays
// full.
#include <cstdint>
#include <string>

#include "accounting/scope_table.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

TEST(ScopeBound, AMillionNamesAreAsManyAsTheBoundAndOneForTheRest) {
  const ScopeId before = InternScope("before");
  constexpr int kNames = 1'000'000;
  std::uint64_t others = 0;
  for (int i = 0; i < kNames; ++i) {
    others += InternScope("step " + std::to_string(i)) == kOtherScopes;
  }
  EXPECT_EQ(ScopeCount(), kMostScopes);
  EXPECT_EQ(others, kNames - (kMostScopes - 3));  // root, other scopes, before
  EXPECT_EQ(ScopesNotInterned(), others);
  EXPECT_EQ(ScopeName(kOtherScopes), "(other scopes)");

  // What was interned keeps its id; what was not gets none later.
  EXPECT_EQ(InternScope("before"), before);
  EXPECT_EQ(InternScope("step 999999"), kOtherScopes);
  EXPECT_EQ(RecomputationOf(before), kOtherScopes);
  EXPECT_EQ(RecomputationOf(kOtherScopes), kOtherScopes);
}

}  // namespace
}  // namespace stratalloc
