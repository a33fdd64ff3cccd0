// SPDX-License-Identifier: Apache-2.0
#include "accounting/stack_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/events/event_recorder.h"

namespace stratalloc {
namespace {

// Outermost first.
SiteId Stack(const std::vector<std::pair<std::string, bool>>& frames) {
  SiteId caller = kNoSite;
  for (const auto& [text, own] : frames) {
    caller = InternCall(caller, InternFrame(text, own));
  }
  return caller;
}

TEST(StackTable, StacksShareTheirCallersAndAreTheSameAgain) {
  const std::uint32_t before = CountStacks().calls;
  const SiteId a = Stack({{"m.py:1 main", true}, {"n.py:2 f", true}});
  const SiteId b = Stack({{"m.py:1 main", true}, {"n.py:3 f", true}});
  EXPECT_NE(a, b);
  EXPECT_GE(Raw(a), Raw(kFirstCall));
  EXPECT_EQ(CountStacks().calls, before + 3);
  EXPECT_EQ(Stack({{"m.py:1 main", true}, {"n.py:2 f", true}}), a);
  EXPECT_NE(Stack({{"n.py:2 f", true}}), a) << "another caller";
  EXPECT_EQ(CountStacks().calls, before + 4);
}

TEST(StackTable, TheLineIsTheInnermostOfTheUsers) {
  EXPECT_EQ(SiteName(LineOf(Stack({{"a.py:1 main", true},
                                   {"b.py:2 forward", true},
                                   {"lib/c.py:3 call", false},
                                   {"lib/d.py:4 linear", false}}))),
            "b.py:2 forward");
  EXPECT_EQ(SiteName(LineOf(
                Stack({{"lib/x.py:1 x", false}, {"lib/y.py:2 y", false}}))),
            "lib/x.py:1 x")
      << "the outermost where none is";
  const SiteId line = InternSite("z.py:9 z");
  EXPECT_EQ(LineOf(line), line);
  EXPECT_EQ(LineOf(kNoSite), kNoSite);
  EXPECT_EQ(LineOf(SiteId{0xffff}), kNoSite) << "never handed out";
}

TEST(StackTable, NamesSayTheCallerAndTheLine) {
  ASSERT_TRUE(EventRecorder::Start(std::nullopt));
  const SiteId inner = Stack({{"q.py:1 q", true}, {"lib/r.py:2 r s", false}});
  const SiteId outer = Stack({{"q.py:1 q", true}});
  const EventAreaHead& head = EventRecorder::area()->head();
  const std::string names(
      reinterpret_cast<const char*>(&head) + head.names_offset,
      head.names_used);
  EXPECT_NE(names.find(std::to_string(Raw(outer)) + ' ' +
                       std::to_string(Raw(LineOf(outer))) + " lib/r.py:2 r s"),
            std::string::npos);
  const std::uint64_t used = head.names_used;
  Stack({{"q.py:1 q", true}, {"lib/r.py:2 r s", false}});
  EXPECT_EQ(head.names_used, used) << "named once";
  NameCalls();
  EXPECT_GT(head.names_used, used);
  EXPECT_EQ(LineOf(inner), LineOf(outer));
}

TEST(StackTable, ThreadsAgree) {
  std::vector<std::map<int, SiteId>> seen(8);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 300; ++i) {
        mine[i] = Stack(
            {{"t.py:1 t", true}, {"u.py:" + std::to_string(i) + " u", true}});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
}

// The last, since no number is left after it.
TEST(StackTableBound, WhatIsBeyondItIsCountedAndHasNoNumber) {
  ASSERT_TRUE(EventRecorder::Start(std::nullopt));
  const FrameNumber deep = InternFrame("deep.py:1 deep", true);
  const FrameNumber other = InternFrame("other.py:1 other", true);
  std::vector<SiteId> callers = {kNoSite};
  while (CountStacks().calls < kMostCalls - 1) {
    callers.push_back(InternCall(callers.back(), deep));
  }
  // All find that a number is left, if they are as fast as each other.
  constexpr std::size_t kThreads = 32;
  std::atomic<std::size_t> ready{0};
  std::vector<SiteId> got(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (++ready; ready < kThreads;) std::this_thread::yield();
      got[i] = InternCall(callers[i], other);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(got.begin(), got.end(), kNoSite), kThreads - 1);
  const SiteId last = *std::max_element(got.begin(), got.end());
  EXPECT_EQ(Raw(last), 0xffffu) << "as much as an event can say";
  EXPECT_EQ(CountStacks().calls, kMostCalls);
  EXPECT_EQ(CountStacks().refused, kThreads - 1);
  EXPECT_EQ(EventRecorder::area()->head().stacks_lost, kThreads - 1);
  EXPECT_EQ(SiteName(LineOf(last)), "other.py:1 other");
  for (std::uint32_t i = 0; i <= kMostCalls; ++i) {
    InternFrame("f.py:" + std::to_string(i), false);
  }
  EXPECT_EQ(InternFrame("one more", false), 0u);
  EXPECT_EQ(InternCall(kNoSite, 0), kNoSite);
}

}  // namespace
}  // namespace stratalloc
