// SPDX-License-Identifier: Apache-2.0
// Built with STRATALLOC_DEBUG, so that lock ranks are checked.
#include "allocator/base/mutex.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <thread>

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
  Mutex mutex(LockRank::kPlan);
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

TEST(MutexDeathTest, ReversalAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex arbiter(LockRank::kArbiter);
  Mutex device(LockRank::kDevice);
  MutexLock held(device);
  EXPECT_DEATH(arbiter.Lock(), "lock order: rank 30 taken while rank 50");
}

TEST(MutexDeathTest, SameRankTwiceAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex one(LockRank::kTier);
  Mutex two(LockRank::kTier);
  MutexLock held(one);
  EXPECT_DEATH(two.Lock(), "lock order: rank 40 taken while rank 40");
}

}  // namespace
}  // namespace stratalloc
