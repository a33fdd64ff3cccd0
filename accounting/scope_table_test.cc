// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_table.h"

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace stratalloc {
namespace {

TEST(ScopeTable, RootIsTheEmptyPath) {
  EXPECT_EQ(InternScope(""), kRootScope);
  EXPECT_EQ(ScopeName(kRootScope), "(no scope)");
}

TEST(ScopeTable, SamePathSameIdOtherPathOtherId) {
  const ScopeId a = InternScope("Bert.encoder.layer.0");
  const ScopeId b = InternScope("Bert.encoder.layer.1");
  EXPECT_NE(a, b);
  EXPECT_NE(a, kRootScope);
  EXPECT_EQ(InternScope(std::string("Bert.encoder.layer.0")), a);
  EXPECT_EQ(ScopeName(a), "Bert.encoder.layer.0");
  EXPECT_EQ(ScopeName(b), "Bert.encoder.layer.1");
}

TEST(ScopeTable, KeepsItsOwnCopyOfThePath) {
  std::string path = "short-lived";
  const ScopeId id = InternScope(path);
  path = "overwritten";
  EXPECT_EQ(ScopeName(id), "short-lived");
  EXPECT_EQ(InternScope("short-lived"), id);
}

TEST(ScopeTable, UnknownIdHasANameToPrint) {
  EXPECT_EQ(ScopeName(static_cast<ScopeId>(4000000000u)), "scope #4000000000");
}

TEST(ScopeTable, ARecomputationIsBelowItsLayer) {
  const ScopeId layer = InternScope("Net.layers.7");
  const ScopeId again = RecomputationOf(layer);
  EXPECT_EQ(ScopeName(again), "Net.layers.7/recomputation");
  EXPECT_EQ(RecomputationOf(layer), again);
  EXPECT_EQ(InternScope("Net.layers.7/recomputation"), again);
  EXPECT_EQ(RecomputationOf(kRootScope), kRootScope);
  EXPECT_EQ(RecomputationOf(ScopeId{4000000000u}), ScopeId{4000000000u});
}

// One name as long as all may be together leaves no room for it.
TEST(ScopeTable, NamesAreBoundedInBytes) {
  const std::uint64_t before = ScopesNotInterned();
  EXPECT_EQ(InternScope(std::string(kMostScopeNames, 'x')), kOtherScopes);
  EXPECT_EQ(ScopesNotInterned(), before + 1);
  EXPECT_NE(InternScope("still there is room"), kOtherScopes);
}

TEST(ScopeTable, IdsAreDense) {
  const int before = ScopeCount();
  const ScopeId id = InternScope("dense");
  EXPECT_EQ(static_cast<int>(Raw(id)), before);
  EXPECT_EQ(ScopeCount(), before + 1);
}

// Four threads intern the same thousand paths in their own order: each path
// must get one id, and names must be readable while the table grows.
TEST(ScopeTable, ThreadsAgree) {
  constexpr int kPaths = 1000;
  constexpr int kThreads = 4;
  std::array<std::vector<ScopeId>, kThreads> seen;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &seen] {
      seen[t].resize(kPaths);
      for (int i = 0; i < kPaths; ++i) {
        const int path = (i * 7 + t * 251) % kPaths;
        const std::string name = "thread.path." + std::to_string(path);
        seen[t][path] = InternScope(name);
        EXPECT_EQ(ScopeName(seen[t][path]), name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(seen[t], seen[0]);
}

}  // namespace
}  // namespace stratalloc
