// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/condition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "allocator/base/host_time.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;

// What the listener heard, in the order of the mutex that all events are under.
std::vector<std::string> heard;
std::uint64_t expected = 0;

void Hear(const char* what, std::uint64_t number) {
  heard.push_back(what + std::string(number == expected ? "" : " another"));
}

constexpr HostTimeListener kListener = {
    .checksummed = [](std::uint64_t bytes) { Hear("checksummed", bytes); },
    .let_go = [](std::uint64_t token) { Hear("let go", token); },
    .went_on = [](std::uint64_t token) { Hear("went on", token); },
};

class ConditionTest : public testing::Test {
 protected:
  ~ConditionTest() override {
    host_time_listener.store(nullptr);
    heard.clear();
  }
  Mutex mutex_{LockRank::kPlan};
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
  EXPECT_THAT(heard, ElementsAre());
}

TEST_F(ConditionTest, BothSidesAreTold) {
  expected = reinterpret_cast<std::uintptr_t>(&condition_);
  host_time_listener.store(&kListener);
  Meet(mutex_, condition_);
  // A wait may end early, so that the last two are what is certain.
  ASSERT_GE(heard.size(), 2u);
  EXPECT_EQ(heard[heard.size() - 2], "let go");
  EXPECT_EQ(heard.back(), "went on");
}

TEST_F(ConditionTest, AWaitThatEndsByItselfIsTold) {
  expected = reinterpret_cast<std::uintptr_t>(&condition_);
  host_time_listener.store(&kListener);
  MutexLock lock(mutex_);
  condition_.WaitFor(mutex_, std::chrono::nanoseconds(1));
  EXPECT_THAT(heard, ElementsAre("went on"));
}

TEST_F(ConditionTest, BytesThatAreChecksummedAreTold) {
  expected = 4096;
  NoteChecksummed(4096);
  host_time_listener.store(&kListener);
  NoteChecksummed(4096);
  EXPECT_THAT(heard, ElementsAre("checksummed"));
}

}  // namespace
}  // namespace stratalloc
