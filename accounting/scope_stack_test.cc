// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_stack.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "accounting/scope_table.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

ScopeFrame Frame(std::uint32_t scope) {
  return {static_cast<ScopeId>(scope), Category::kActivation,
          LifetimeClass::kTransient};
}

// Every test leaves the stack of this thread empty and no listener behind.
class ScopeStackTest : public testing::Test {
 protected:
  void TearDown() override {
    SetScopeListener(nullptr);
    EXPECT_EQ(ScopeDepth(), 0);
  }
};

class Recorder : public ScopeListener {
 public:
  void OnEnter(ScopeId scope) override {
    events.emplace_back('+', Raw(scope));
    top_at_enter.push_back(Raw(CurrentScope().scope));
  }
  void OnLeave(ScopeId scope) override {
    events.emplace_back('-', Raw(scope));
    top_at_leave.push_back(Raw(CurrentScope().scope));
  }
  void OnBackward(ScopeId scope) override {
    events.emplace_back('b', Raw(scope));
  }
  std::vector<std::pair<char, std::uint32_t>> events;
  std::vector<std::uint32_t> top_at_enter;
  std::vector<std::uint32_t> top_at_leave;
};

TEST_F(ScopeStackTest, EmptyStackIsTheRootFrame) {
  EXPECT_EQ(CurrentScope().scope, kRootScope);
  EXPECT_EQ(CurrentScope().category, Category::kUnknown);
  EXPECT_EQ(CurrentScope().lifetime, LifetimeClass::kUnknown);
}

TEST_F(ScopeStackTest, LastPushedIsOnTop) {
  PushScope({static_cast<ScopeId>(7), Category::kParameter,
             LifetimeClass::kPersistent});
  PushScope(Frame(8));
  EXPECT_EQ(Raw(CurrentScope().scope), 8u);
  EXPECT_EQ(CurrentScope().lifetime, LifetimeClass::kTransient);
  EXPECT_TRUE(PopScope());
  EXPECT_EQ(Raw(CurrentScope().scope), 7u);
  EXPECT_EQ(CurrentScope().category, Category::kParameter);
  EXPECT_EQ(CurrentScope().lifetime, LifetimeClass::kPersistent);
  EXPECT_TRUE(PopScope());
  EXPECT_EQ(CurrentScope().scope, kRootScope);
}

TEST_F(ScopeStackTest, PopsToADepthAndNeverBelow) {
  Recorder recorder;
  PushScope(Frame(1));
  SetScopeListener(&recorder);
  for (std::uint32_t scope : {2, 3, 4}) PushScope(Frame(scope));
  recorder.events.clear();
  PopScopesTo(1);
  EXPECT_EQ(Raw(CurrentScope().scope), 1u);
  EXPECT_EQ(recorder.events,
            (decltype(recorder.events){{'-', 4u}, {'-', 3u}, {'-', 2u}}));
  PopScopesTo(1);
  PopScopesTo(7);
  EXPECT_EQ(ScopeDepth(), 1);
  PopScopesTo(0);
}

TEST_F(ScopeStackTest, AFrameBelowKeepsItsNewCategory) {
  PushScope(Frame(7));
  SetFrameCategory(Category::kOptimizerState);
  EXPECT_EQ(CurrentScope().category, Category::kOptimizerState);
  PushScope(Frame(8));
  EXPECT_EQ(CurrentScope().category, Category::kActivation);
  PopScope();
  EXPECT_EQ(Raw(CurrentScope().scope), 7u);
  EXPECT_EQ(CurrentScope().category, Category::kOptimizerState);
  EXPECT_EQ(CurrentScope().lifetime, LifetimeClass::kTransient);
  PopScope();
}

TEST_F(ScopeStackTest, PopOfEmptyStackIsIgnored) {
  Recorder recorder;
  SetScopeListener(&recorder);
  EXPECT_FALSE(PopScope());
  EXPECT_EQ(ScopeDepth(), 0);
  EXPECT_TRUE(recorder.events.empty());
  PushScope(Frame(1));
  EXPECT_EQ(Raw(CurrentScope().scope), 1u);
  EXPECT_TRUE(PopScope());
}

TEST_F(ScopeStackTest, ListenerHearsBothInOrderWithTheFrameOnTopOnEnter) {
  Recorder recorder;
  SetScopeListener(&recorder);
  PushScope(Frame(1));
  PushScope(Frame(2));
  PopScope();
  PopScope();
  const std::vector<std::pair<char, std::uint32_t>> expected = {
      {'+', 1}, {'+', 2}, {'-', 2}, {'-', 1}};
  EXPECT_EQ(recorder.events, expected);
  EXPECT_EQ(recorder.top_at_enter, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(recorder.top_at_leave, (std::vector<std::uint32_t>{1, 0}));
}

TEST_F(ScopeStackTest, RemovedListenerHearsNothing) {
  Recorder recorder;
  SetScopeListener(&recorder);
  SetScopeListener(nullptr);
  PushScope(Frame(1));
  PopScope();
  EXPECT_TRUE(recorder.events.empty());
}

TEST_F(ScopeStackTest, FramesBeyondTheLimitStayBalanced) {
  Recorder recorder;
  SetScopeListener(&recorder);
  constexpr std::uint32_t kFrames = kMaxScopeDepth + 44;
  for (std::uint32_t i = 1; i <= kFrames; ++i) PushScope(Frame(i));
  EXPECT_EQ(ScopeDepth(), static_cast<int>(kFrames));
  EXPECT_EQ(Raw(CurrentScope().scope),
            static_cast<std::uint32_t>(kMaxScopeDepth));
  EXPECT_EQ(recorder.events.size(), static_cast<std::size_t>(kMaxScopeDepth));
  for (std::uint32_t i = kFrames; i > 0; --i) {
    EXPECT_EQ(Raw(CurrentScope().scope),
              i < kMaxScopeDepth ? i : std::uint32_t{kMaxScopeDepth});
    EXPECT_TRUE(PopScope());
  }
  EXPECT_FALSE(PopScope());
  EXPECT_EQ(recorder.events.size(),
            2 * static_cast<std::size_t>(kMaxScopeDepth));
}

TEST_F(ScopeStackTest, ThreadsHaveTheirOwnStacks) {
  PushScope(Frame(99));
  std::vector<std::thread> threads;
  for (std::uint32_t t = 1; t <= 4; ++t) {
    threads.emplace_back([t] {
      EXPECT_EQ(CurrentScope().scope, kRootScope);
      for (int i = 0; i < 1000; ++i) {
        PushScope(Frame(t));
        PushScope(Frame(t + 10));
        EXPECT_EQ(Raw(CurrentScope().scope), t + 10);
        PopScope();
        EXPECT_EQ(Raw(CurrentScope().scope), t);
        PopScope();
      }
      EXPECT_EQ(ScopeDepth(), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Raw(CurrentScope().scope), 99u);
  PopScope();
}

// Made before the thread's first push and so destroyed after whatever that
// push made, were it a thread-local with a destructor.
struct PushesAtTheEnd {
  bool* balanced;
  ~PushesAtTheEnd() {
    const std::uint32_t before = Raw(CurrentScope().scope);
    PushScope(Frame(5));
    const std::uint32_t pushed = Raw(CurrentScope().scope);
    *balanced = before == 3 && pushed == 5 && PopScope() &&
                Raw(CurrentScope().scope) == 3 && ScopeDepth() == 1;
  }
};

TEST_F(ScopeStackTest, WorksInAThreadsLastDestructors) {
  bool balanced = false;
  std::thread([&] {
    static thread_local PushesAtTheEnd at_the_end{&balanced};
    at_the_end.balanced = &balanced;
    PushScope(Frame(3));  // never popped
  }).join();
  EXPECT_TRUE(balanced);
}

// A layer's nodes follow each other, and a recomputation runs inside of one.
TEST_F(ScopeStackTest, BackwardIsToldOncePerLayer) {
  Recorder recorder;
  SetScopeListener(&recorder);
  const auto backward = [](std::uint32_t scope) {
    ScopeFrame frame = Frame(scope);
    frame.backward = true;
    return frame;
  };
  for (const std::uint32_t scope : {9, 9, 8, 9}) {
    PushScope(backward(scope));
    EXPECT_TRUE(CurrentScope().in_backward);
    PopScope();
  }
  EXPECT_FALSE(CurrentScope().in_backward);
  PushScope(backward(9));
  PushScope(Frame(8));
  EXPECT_FALSE(CurrentScope().backward);
  EXPECT_TRUE(CurrentScope().in_backward);
  PopScope();
  PopScope();
  const std::vector<std::pair<char, std::uint32_t>> expected = {
      {'b', 9}, {'b', 8}, {'b', 9}, {'+', 8}, {'-', 8}};
  EXPECT_EQ(recorder.events, expected);
}

// A module inside of a node, and all that it enters, pays as a recomputation;
// what a hook opens there, and a node inside of it, does not.
TEST_F(ScopeStackTest, AModuleInsideOfANodeRecomputes) {
  const ScopeId layer = InternScope("Net.layer"), part = InternScope("part");
  ScopeFrame module{layer, Category::kActivation, LifetimeClass::kTransient};
  module.module = true;
  ScopeFrame node = module;
  node.module = false;
  node.backward = true;
  ScopeFrame user{part, Category::kActivation, LifetimeClass::kTransient};

  PushScope(module);
  EXPECT_EQ(CurrentScope().payer, layer);
  PushScope(node);
  EXPECT_EQ(CurrentScope().payer, layer);
  PushScope(user);
  EXPECT_EQ(CurrentScope().payer, part);
  PopScope();
  PushScope(module);
  EXPECT_EQ(CurrentScope().scope, layer);
  EXPECT_EQ(ScopeName(CurrentScope().payer), "Net.layer/recomputation");
  PushScope(user);
  EXPECT_EQ(ScopeName(CurrentScope().payer), "part/recomputation");
  PopScope();
  PushScope(node);
  EXPECT_EQ(CurrentScope().payer, layer);
  PopScope();
  PopScope();
  EXPECT_EQ(CurrentScope().payer, layer);
  PopScope();
  PopScope();
  EXPECT_EQ(CurrentScope().payer, kRootScope);
}

std::vector<FrameId> ended;

// Innermost first, with those that nobody popped.
TEST_F(ScopeStackTest, AFramesAccountEndsWithItAndWithItsThread) {
  ended.clear();
  SetFrameEnd([](FrameId account) { ended.push_back(account); });
  PushScope(Frame(3));
  SetFrameAccount(11);
  PushScope(Frame(4));
  EXPECT_EQ(CurrentScope().account, 0u);
  PopScope();
  EXPECT_TRUE(ended.empty()) << "it had none";
  EXPECT_EQ(CurrentScope().account, 11u);
  PopScope();
  EXPECT_EQ(ended, std::vector<FrameId>{11});
  std::thread([] {
    PushScope(Frame(3));
    SetFrameAccount(12);
    PushScope(Frame(4));
    PushScope(Frame(5));
    SetFrameAccount(13);
  }).join();
  EXPECT_EQ(ended, (std::vector<FrameId>{11, 13, 12}));
  SetFrameEnd(nullptr);
}

class Counter : public ScopeListener {
 public:
  void OnEnter(ScopeId) override { entered.fetch_add(1); }
  void OnLeave(ScopeId) override { left.fetch_add(1); }
  void OnBackward(ScopeId) override {}
  std::atomic<int> entered{0};
  std::atomic<int> left{0};
};

// The listener is set and removed while other threads push and pop; under
// TSan this is the proof that the switch is not a race.
TEST_F(ScopeStackTest, ListenerCanChangeWhileOthersPush) {
  static Counter counter;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&stop] {
      while (!stop.load()) {
        PushScope(Frame(3));
        PopScope();
      }
    });
  }
  while (counter.entered.load() < 100) {
    SetScopeListener(&counter);
    SetScopeListener(nullptr);
    SetScopeListener(&counter);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(counter.left.load(), 1);
}

}  // namespace
}  // namespace stratalloc
