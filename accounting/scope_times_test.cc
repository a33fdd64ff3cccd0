// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_times.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "accounting/scope_stack.h"
#include "accounting/scope_table.h"
#include "allocator/base/ticks.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

ScopeFrame Frame(ScopeId scope, bool backward = false) {
  return {.scope = scope,
          .category = Category::kActivation,
          .lifetime = LifetimeClass::kTransient,
          .backward = backward};
}

ScopeTime Of(ScopeId scope) {
  for (const ScopeTime& time : ScopeTimes::All()) {
    if (time.scope == scope) return time;
  }
  return {};
}

// Until the clock that scopes are timed by has moved on so far.
void Spend(double ns) {
  const auto ticks = static_cast<std::uint64_t>(ns / NsPerTick());
  const std::uint64_t begun = NowTicks();
  while (NowTicks() - begun < ticks) {
  }
}

constexpr std::uint64_t kSpent = 200'000;  // ns
// NsPerTick() is measured again for each report.
constexpr std::uint64_t kAtLeast = kSpent * 9 / 10;

TEST(ScopeTimes, AScopesTimeIsItsOwnWithoutThoseInsideOfIt) {
  const ScopeId outer = InternScope("outer"), inner = InternScope("inner");
  const std::uint64_t begun = NowTicks();
  PushScope(Frame(outer));
  PushScope(Frame(inner));
  Spend(kSpent);
  PopScope();
  PushScope(Frame(inner));
  PopScope();
  PopScope();
  const auto wall = static_cast<double>(NowTicks() - begun) * NsPerTick() * 1.1;
  Spend(kSpent);  // nobody's
  EXPECT_EQ(Of(outer).entered, 1u);
  EXPECT_EQ(Of(inner).entered, 2u);
  EXPECT_GE(Of(inner).ns, kAtLeast);
  EXPECT_LE(static_cast<double>(Of(inner).ns + Of(outer).ns), wall);
  EXPECT_EQ(Of(inner).backward_ns, 0u);
}

TEST(ScopeTimes, TimeBeforeAnEnterAndAfterALeaveIsTheOuters) {
  const ScopeId outer = InternScope("around"), inner = InternScope("between");
  PushScope(Frame(outer));
  Spend(kSpent);
  PushScope(Frame(inner));
  PopScope();
  EXPECT_GE(Of(outer).ns, kAtLeast);
  Spend(kSpent);
  PopScope();
  EXPECT_GE(Of(outer).ns, 2 * kAtLeast);
}

TEST(ScopeTimes, BackwardIsApart) {
  const ScopeId scope = InternScope("both ways");
  PushScope(Frame(scope));
  PopScope();
  PushScope(Frame(scope, /*backward=*/true));
  Spend(kSpent);
  PopScope();
  EXPECT_EQ(Of(scope).entered, 1u);
  EXPECT_EQ(Of(scope).backward_nodes, 1u);
  EXPECT_GE(Of(scope).backward_ns, kAtLeast);
  EXPECT_LT(Of(scope).ns, Of(scope).backward_ns);
}

// More threads one after the other than sheets, and some that leave a scope
// open.
TEST(ScopeTimes, WhatThreadsCountedOutlivesThem) {
  const ScopeId scope = InternScope("in threads");
  for (int round = 0; round < 10; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) {
          PushScope(Frame(scope));
          PopScope();
        }
        PushScope(Frame(scope));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(Of(scope).entered, 10u * 4 * 101);
}

TEST(ScopeTimes, SwitchedOffNothingIsCounted) {
  const ScopeId scope = InternScope("unseen");
  ScopeTimes::Count(false);
  PushScope(Frame(scope));
  PopScope();
  PushScope(Frame(scope));
  Spend(kSpent);
  const std::uint64_t begun = NowTicks();
  ScopeTimes::Count(true);
  EXPECT_EQ(Of(scope).entered, 0u);
  PopScope();
  // A scope that was never entered is not told of.
  PushScope(Frame(scope));
  PopScope();
  EXPECT_EQ(Of(scope).entered, 1u);
  const auto wall = static_cast<double>(NowTicks() - begun) * NsPerTick() * 1.1;
  EXPECT_LE(static_cast<double>(Of(scope).ns), wall)
      << "what passed while nothing was counted";
}

// The last possible scope has a place.
TEST(ScopeTimes, EveryScopeHasAPlace) {
  const ScopeId last{kMostScopes - 1};
  PushScope(Frame(last));
  PopScope();
  EXPECT_EQ(Of(last).entered, 1u);
}

}  // namespace
}  // namespace stratalloc
