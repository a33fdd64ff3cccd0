// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/condition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "allocator/base/host_time.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;

// Events of the listener, in the order of the mutex that all events are under.
std::vector<std::string> recorded;
std::uint64_t expected = 0;

void Record(const char* what, std::uint64_t number) {
  recorded.push_back(what + std::string(number == expected ? "" : " another"));
}

constexpr HostTimeListener kListener = {
    .checksummed = [](std::uint64_t bytes) { Record("checksummed", bytes); },
    .let_go = [](std::uint64_t token) { Record("let go", token); },
    .went_on = [](std::uint64_t token) { Record("went on", token); },
};

class ConditionTest : public testing::Test {
 protected:
  ~ConditionTest() override {
    host_time_listener.store(nullptr);
    recorded.clear();
  }
  Mutex mutex_{LockRank::kImports};
  Condition condition_;
};

// One thread waits until another has been there.
void Meet(Mutex& mutex, Condition& condition) {
  bool there = false;
  mutex.Lock();
  std::thread other([&] {
    MutexLock lock(mutex);
    there = true;
    condition.NotifyAll();
  });
  while (!there) condition.Wait(mutex);
  mutex.Unlock();
  other.join();
}

TEST_F(ConditionTest, WhoWaitsIsWoken) {
  Meet(mutex_, condition_);
  EXPECT_THAT(recorded, ElementsAre());
}

TEST_F(ConditionTest, BothSidesAreTold) {
  expected = reinterpret_cast<std::uintptr_t>(&condition_);
  host_time_listener.store(&kListener);
  Meet(mutex_, condition_);
  // A wait may end early, so that the last two are what is certain.
  ASSERT_GE(recorded.size(), 2u);
  EXPECT_EQ(recorded[recorded.size() - 2], "let go");
  EXPECT_EQ(recorded.back(), "went on");
}

TEST_F(ConditionTest, AWaitThatEndsByItselfIsTold) {
  expected = reinterpret_cast<std::uintptr_t>(&condition_);
  host_time_listener.store(&kListener);
  MutexLock lock(mutex_);
  condition_.WaitFor(mutex_, std::chrono::nanoseconds(1));
  EXPECT_THAT(recorded, ElementsAre("went on"));
}

// Waits for `mutex`, which another thread holds until this one sleeps.
void SleepFor(Mutex& mutex) {
  std::atomic<pid_t> sleeper{0};
  mutex.Lock();
  std::thread other([&] {
    sleeper = gettid();
    MutexLock lock(mutex);
  });
  const auto sleeps = [&] {
    std::ifstream file("/proc/self/task/" + std::to_string(sleeper.load()) +
                       "/stat");
    std::string number, name, state;
    file >> number >> name >> state;
    return state == "S";
  };
  while (sleeper == 0 || !sleeps()) std::this_thread::yield();
  mutex.Unlock();
  other.join();
}

std::atomic<int> let_go{0}, went_on{0};
constexpr HostTimeListener kCounter = {
    .checksummed = [](std::uint64_t) {},
    .let_go =
        [](std::uint64_t token) { let_go += token == expected ? 1 : 100; },
    .went_on =
        [](std::uint64_t token) { went_on += token == expected ? 1 : 100; },
};

TEST_F(ConditionTest, WaitForTheArbiterIsReported) {
  Mutex arbiter(LockRank::kArbiter);
  expected = reinterpret_cast<std::uintptr_t>(&arbiter);
  host_time_listener.store(&kCounter);
  { MutexLock no_wait(arbiter); }
  EXPECT_EQ(let_go + went_on, 0);
  // A sleeper that looks for itself may be faster than its wake.
  for (int tries = 0; let_go == 0 && tries < 100; ++tries) SleepFor(arbiter);
  EXPECT_EQ(let_go, 1);
  EXPECT_GE(went_on, 1);
}

TEST_F(ConditionTest, WaitForAnotherLockIsNotReported) {
  Mutex device(LockRank::kDevice);
  let_go = went_on = 0;
  host_time_listener.store(&kCounter);
  SleepFor(device);
  EXPECT_EQ(let_go + went_on, 0);
}

TEST_F(ConditionTest, CandidatesOfAnEvictionAreReported) {
  static constexpr HostTimeListener kChoices = {
      .chose = [](std::uint64_t number) { Record("chose", number); }};
  expected = 64;
  NoteChose(64);
  host_time_listener.store(&kListener);  // one that does not ask for it
  NoteChose(64);
  host_time_listener.store(&kChoices);
  NoteChose(64);
  EXPECT_THAT(recorded, ElementsAre("chose"));
}

TEST_F(ConditionTest, BytesThatAreChecksummedAreTold) {
  expected = 4096;
  NoteChecksummed(4096);
  host_time_listener.store(&kListener);
  NoteChecksummed(4096);
  EXPECT_THAT(recorded, ElementsAre("checksummed"));
}

}  // namespace
}  // namespace stratalloc
