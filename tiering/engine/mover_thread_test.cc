// SPDX-License-Identifier: Apache-2.0
// MoverThread: it sleeps, wakes, relieves and stops, and loses no wake-up.
#include "tiering/engine/mover_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

class MoverThreadTest : public testing::Test {
 protected:
  void Start() {
    mover_ = std::make_unique<MoverThread>(
        [this] { relieved_.fetch_add(1); },
        [this] {
          steps_.fetch_add(1);
          while (stuck_.load()) std::this_thread::yield();
          int left = work_.load();
          while (left > 0 && !work_.compare_exchange_weak(left, left - 1)) {
          }
          if (left > 0) {
            in_vain_.store(0);
            done_.fetch_add(1);
            return true;
          }
          if (in_vain_.fetch_add(1) + 1 == comes_after_.load()) {
            comes_after_.store(0);
            work_.store(1);
            mover_->Wake();
          }
          return false;
        });
  }
  // No step is taken while the test yields for a while.
  bool Sleeps() {
    return Eventually([&] {
      const int before = steps_.load();
      for (int i = 0; i < 20'000; ++i) std::this_thread::yield();
      return steps_.load() == before;
    });
  }

  std::atomic<int> steps_{0}, work_{0}, done_{0};
  // Steps since the last that did work, and after which of them work comes.
  std::atomic<int> in_vain_{0}, comes_after_{0};
  std::atomic<int> relieved_{0};
  std::atomic<bool> stuck_{false};
  std::unique_ptr<MoverThread> mover_;
};

TEST_F(MoverThreadTest, IdleThreadSleeps) {
  Start();
  EXPECT_TRUE(Sleeps());
  EXPECT_GT(steps_.load(), 0);
}

TEST_F(MoverThreadTest, WakeEndsItsSleep) {
  Start();
  ASSERT_TRUE(Sleeps());
  work_.store(5);
  mover_->Wake();
  EXPECT_TRUE(Eventually([&] { return work_.load() == 0; }));
  EXPECT_TRUE(Sleeps());
}

TEST_F(MoverThreadTest, WorkKeepsItAwake) {
  work_.store(1'000);
  Start();
  EXPECT_TRUE(Eventually([&] { return work_.load() == 0; })) << "not woken";
}

// The thread has looked, and may be about to sleep.
TEST_F(MoverThreadTest, WorkThatComesAfterALookIsDone) {
  Start();
  ASSERT_TRUE(Sleeps());
  const int looks = in_vain_.load();
  for (int look : {1, looks - 1, looks}) {
    const int before = done_.load();
    comes_after_.store(look);
    work_.store(1);
    mover_->Wake();
    ASSERT_TRUE(Eventually([&] { return done_.load() == before + 2; }))
        << look << " of " << looks;
    ASSERT_TRUE(Sleeps());
  }
}

TEST_F(MoverThreadTest, WakesOfSeveralThreadsAreServed) {
  Start();
  ASSERT_TRUE(Sleeps());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        work_.fetch_add(1);
        mover_->Wake();
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return work_.load() == 0; }));
}

TEST_F(MoverThreadTest, ReliefIsGivenOnceForEachTimeItWasAsked) {
  Start();
  ASSERT_TRUE(Sleeps());
  EXPECT_EQ(relieved_.load(), 0);
  for (int times = 1; times <= 2; ++times) {
    mover_->AskRelief();
    EXPECT_TRUE(Eventually([&] { return relieved_.load() >= times; }));
    ASSERT_TRUE(Sleeps());
    EXPECT_EQ(relieved_.load(), times);
  }
}

TEST_F(MoverThreadTest, ReliefAskedDuringAStepIsServed) {
  stuck_.store(true);
  Start();
  ASSERT_TRUE(Eventually([&] { return steps_.load() == 1; }));
  mover_->AskRelief();
  stuck_.store(false);
  EXPECT_TRUE(Eventually([&] { return relieved_.load() == 1; }));
}

TEST_F(MoverThreadTest, StopEndsASleepingThreadAndAgainDoesNothing) {
  Start();
  ASSERT_TRUE(Sleeps());
  mover_->Stop();
  mover_->Stop();
  const int steps = steps_.load();
  mover_->AskRelief();
  mover_->Wake();
  EXPECT_TRUE(Sleeps());
  EXPECT_EQ(steps_.load(), steps);
  EXPECT_EQ(relieved_.load(), 0) << "what is asked afterwards is ignored";
}

TEST_F(MoverThreadTest, StopWaitsForTheStepInHand) {
  stuck_.store(true);
  work_.store(1'000'000);
  Start();
  ASSERT_TRUE(Eventually([&] { return steps_.load() == 1; }));
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    mover_->Stop();
    stopped.store(true);
  });
  for (int i = 0; i < 2'000; ++i) std::this_thread::yield();
  EXPECT_FALSE(stopped.load());
  stuck_.store(false);
  stopping.join();
  EXPECT_GT(work_.load(), 0) << "it need not run out of work";
}

}  // namespace
}  // namespace stratalloc
