// SPDX-License-Identifier: Apache-2.0
#include "accounting/node_scopes.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "accounting/scope_stack.h"

namespace stratalloc {
namespace {

// Numbers as autograd gives them: per thread, upwards.
thread_local std::uint64_t next_node = 0;
thread_local std::uint64_t this_thread = 0;
constexpr NodeScopes::Numbers kNumbers{[] { return next_node; },
                                       [] { return this_thread; }};

class NodeScopesTest : public testing::Test {
 protected:
  void SetUp() override {
    NodeScopes::Use(&kNumbers);
    // A thread of its own for each test: numbers begin anew.
    static std::uint64_t threads = 100;
    thread_ = ++threads;
  }
  void TearDown() override { NodeScopes::Use(nullptr); }
  template <typename F>
  void OnThread(F&& f) {
    std::thread([&] {
      this_thread = thread_;
      f();
    }).join();
  }
  std::optional<ScopeId> Of(std::uint64_t node) {
    return NodeScopes::Find(thread_, node);
  }

  std::uint64_t thread_ = 0;
};

ScopeFrame Frame(std::uint32_t scope) {
  return {ScopeId{scope}, Category::kActivation, LifetimeClass::kTransient};
}

TEST_F(NodeScopesTest, ANodeIsOfTheScopeOnTopWhenItWasMade) {
  OnThread([] {
    next_node++;  // 0: in no scope
    PushScope(Frame(3));
    next_node++;  // 1
    PushScope(Frame(4));
    next_node += 2;  // 2, 3
    PopScope();
    next_node++;  // 4
    PopScope();
    next_node++;  // 5
  });
  EXPECT_EQ(Of(0), kRootScope);
  EXPECT_EQ(Of(1), ScopeId{3});
  EXPECT_EQ(Of(2), ScopeId{4});
  EXPECT_EQ(Of(3), ScopeId{4});
  EXPECT_EQ(Of(4), ScopeId{3});
  EXPECT_EQ(Of(5), kRootScope) << "the thread has ended, its graph has not";
  EXPECT_EQ(NodeScopes::Find(1, 0), std::nullopt) << "no such thread";
}

TEST_F(NodeScopesTest, WhatIsTooLongAgoIsNotFound) {
  OnThread([] {
    for (std::uint32_t i = 0; i < 70000; ++i) {
      PushScope(Frame(1 + i % 5));
      next_node++;
      PopScope();
    }
  });
  EXPECT_EQ(Of(3), std::nullopt);
  EXPECT_EQ(Of(69999), ScopeId{1 + 69999 % 5});
  EXPECT_EQ(Of(69000), ScopeId{1 + 69000 % 5});
}

// A forward that no backward follows, without grad: nothing is kept.
TEST_F(NodeScopesTest, ScopesThatMakeNoNodesPushNothingOut) {
  OnThread([] {
    PushScope(Frame(7));
    next_node++;
    PopScope();
    for (int i = 0; i < 70000; ++i) {
      PushScope(Frame(8));
      PopScope();
    }
  });
  EXPECT_EQ(Of(0), ScopeId{7});
}

TEST_F(NodeScopesTest, ThreadsThatEndedAreForgottenInTurn) {
  OnThread([] {
    PushScope(Frame(7));
    next_node++;
    PopScope();
  });
  for (int i = 0; i < 300; ++i) {
    std::thread([i] {
      this_thread = 100000 + i;
      PushScope(Frame(8));
      PopScope();
    }).join();
  }
  EXPECT_EQ(Of(0), std::nullopt);
  EXPECT_NE(NodeScopes::Find(100299, 0), std::nullopt);
}

// A thread keeps where it looked last: of one thread's numbers, in one place.
TEST_F(NodeScopesTest, WhoLooksElsewhereFindsWhatIsThere) {
  const std::uint64_t first = thread_, second = ++thread_;
  for (const std::uint64_t each : {first, second}) {
    thread_ = each;
    OnThread([&] {
      next_node = 0;
      for (std::uint32_t node = 0; node < 100; ++node) {
        PushScope(Frame(each == first ? 1 + node : 1001 + node));
        next_node++;
        PopScope();
      }
    });
  }
  // Down as backward goes, then far, in both by turns.
  for (const std::uint64_t node : {99, 98, 98, 97, 3, 90, 91, 0, 99}) {
    EXPECT_EQ(NodeScopes::Find(first, node), ScopeId(1 + node));
    EXPECT_EQ(NodeScopes::Find(first, node), ScopeId(1 + node));
    EXPECT_EQ(NodeScopes::Find(second, node), ScopeId(1001 + node));
  }
}

TEST_F(NodeScopesTest, WhereItLookedMayBeForgotten) {
  OnThread([&] {
    const auto scopes = [](std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        PushScope(Frame(1 + next_node % 5));
        next_node++;
        PopScope();
      }
    };
    const auto expect_near = [&](std::uint64_t node) {
      for (const std::uint64_t each : {node, node - 1, node + 1, node}) {
        EXPECT_EQ(Of(each), ScopeId(1 + each % 5)) << each;
      }
    };
    scopes(60000);
    expect_near(29000);
    scopes(10000);  // 70000 changes in all: the first ones go
    expect_near(29000);
    expect_near(5000);
    scopes(1000);
    EXPECT_EQ(Of(5000), std::nullopt) << "it was the last one found";
    expect_near(70000);
  });
}

// Beside a list with an entry for each node.
TEST_F(NodeScopesTest, EveryNodeIsFoundWhileMoreAreMade) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    ++thread_;
    OnThread([&] {
      next_node = 0;
      std::mt19937 random(seed);
      std::vector<ScopeId> made;
      for (int step = 0; step < 500; ++step) {
        const unsigned what = random() % 4;
        if (what == 0) {
          PushScope(Frame(1 + random() % 6));
        } else if (what == 1) {
          PopScope();
        } else {
          made.push_back(CurrentScope().scope);
          next_node++;
        }
        if (made.empty()) continue;
        const std::size_t node = random() % made.size();
        ASSERT_EQ(Of(node).value_or(kRootScope), made[node]) << "seed " << seed;
      }
      while (PopScope()) continue;
    });
  }
}

}  // namespace
}  // namespace stratalloc
