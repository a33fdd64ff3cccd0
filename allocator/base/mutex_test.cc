// SPDX-License-Identifier: Apache-2.0
// Built with STRATALLOC_DEBUG, so that lock ranks are checked.
#include "allocator/base/mutex.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <thread>
#include <vector>

namespace stratalloc {
namespace {

TEST(Mutex, AcceptsLocksInOrder) {
  Mutex arbiter(LockRank::kArbiter);
  Mutex device(LockRank::kDevice);
  for (int i = 0; i < 3; ++i) {
    MutexLock first(arbiter);
    MutexLock second(device);
  }
}

TEST(Mutex, AcceptsReleaseOutOfOrder) {
  Mutex arbiter(LockRank::kArbiter);
  Mutex device(LockRank::kDevice);
  arbiter.Lock();
  device.Lock();
  arbiter.Unlock();
  device.Unlock();
  MutexLock again(arbiter);
}

TEST(Mutex, RanksArePerThread) {
  Mutex device(LockRank::kDevice);
  Mutex arbiter(LockRank::kArbiter);
  MutexLock held(device);
  std::thread other([&] { MutexLock lock(arbiter); });
  other.join();
}

TEST(Mutex, ServesAConditionVariable) {
  Mutex mutex(LockRank::kImports);
  std::condition_variable_any ready;
  bool flag = false;
  std::thread other([&] {
    MutexLock lock(mutex);
    flag = true;
    ready.notify_one();
  });
  mutex.Lock();
  ready.wait(mutex, [&] { return flag; });
  mutex.Unlock();
  other.join();
  MutexLock first(mutex);  // the wait left the thread's ranks as they were
}

TEST(Mutex, ExcludesAndWakesSleepers) {
  constexpr int kThreads = 4, kRounds = 20000;
  Mutex mutex(LockRank::kImports);
  long sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        MutexLock lock(mutex);
        const long seen = sum;
        // Long enough now and then that the others lie down.
        if (i % 1000 == 0) std::this_thread::yield();
        sum = seen + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, long{kThreads} * kRounds);
}

TEST(Mutex, TryLockFailsWhileHeld) {
  Mutex mutex(LockRank::kImports);
  MutexLock held(mutex);
  std::thread other([&] { EXPECT_FALSE(mutex.TryLock()); });
  other.join();
}

TEST(MutexDeathTest, ReversalAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex arbiter(LockRank::kArbiter);
  Mutex device(LockRank::kDevice);
  MutexLock held(device);
  EXPECT_DEATH({ MutexLock wrong(arbiter); },
               "lock order: rank 30 taken while rank 50");
}

TEST(MutexDeathTest, SameRankAgainstTheOrderOfAddressesAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex locks[2] = {Mutex(LockRank::kTier), Mutex(LockRank::kTier)};
  Mutex& lower = locks[0];
  Mutex& higher = locks[1];
  {  // In their order both may be held.
    MutexLock first(lower);
    MutexLock second(higher);
  }
  MutexLock held(higher);
  EXPECT_DEATH({ MutexLock wrong(lower); },
               "lock order: rank 40 taken while rank 40");
}

TEST(MutexDeathTest, TryInAnyOrderIsAllowedAndCountsAsHeld) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex locks[2] = {Mutex(LockRank::kArbiter), Mutex(LockRank::kArbiter)};
  Mutex& lower = locks[0];
  MutexLock held(locks[1]);
  if (!lower.TryLock()) FAIL() << "not held by any thread";
  lower.AssertHeld();
  Mutex before(LockRank::kAdmission);
  EXPECT_DEATH({ MutexLock wrong(before); }, "lock order: rank 25");
  lower.Unlock();
}

// What AssertHeld promises the analysis is looked at.
TEST(MutexDeathTest, AssertHeldKnowsItsOwnLock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex mutex(LockRank::kDevice);
  Mutex other(LockRank::kTier);
  {
    MutexLock held(mutex);
    mutex.AssertHeld();
  }
  MutexLock held(other);
  EXPECT_DEATH(mutex.AssertHeld(), "rank 50 is not held by this thread");
}

}  // namespace
}  // namespace stratalloc
