// SPDX-License-Identifier: Apache-2.0
// The order of turns, without a device: the world and the clock are the
// test's.
#include "tiering/engine/admission.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "allocator/base/clock.h"

namespace stratalloc {
namespace {

constexpr std::int64_t kQuiet = 1000, kMemory = 20'000, kRunning = 100'000,
                       kBusy = 600'000;

class AdmissionTest : public testing::Test {
 protected:
  // What the other threads of the process do.
  std::atomic<bool> others_{true}, running_{false}, device_busy_{false};
  std::atomic<std::uint64_t> progress_{0}, freed_{0};
  std::atomic<std::int64_t> now_{0};
  Admission admission_{{.look =
                            [this] {
                              return Admission::World{
                                  .others = others_,
                                  .running = running_,
                                  .device_busy = device_busy_,
                                  .progress = progress_,
                                  .freed = freed_};
                            },
                        .now_ns = [this] { return now_.load(); },
                        .quiet_ns = kQuiet,
                        .running_ns = kRunning,
                        .busy_ns = kBusy,
                        .memory_ns = kMemory}};

  // A turn tried and was refused.
  static void Try(Admission::Turn& turn) {
    ASSERT_TRUE(turn.Await());
    turn.Refused();
  }
};

TEST_F(AdmissionTest, WhoComesAloneTriesAtOnce) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  EXPECT_TRUE(turn.MayTry());
  EXPECT_TRUE(turn.Await());
  EXPECT_FALSE(admission_.crowded());
}

TEST_F(AdmissionTest, TheOldestTriesFirst) {
  const std::uint64_t first = admission_.NewTicket();
  const std::uint64_t second = admission_.NewTicket();
  Admission::Turn young(admission_, second);
  Admission::Turn old(admission_, first);
  EXPECT_FALSE(young.MayTry()) << "the older has yet to try";
  EXPECT_TRUE(old.MayTry());
  EXPECT_FALSE(young.MayTry()) << "... and is trying";
}

TEST_F(AdmissionTest, WhileTheOlderAreRefusedTheYoungerMayTry) {
  Admission::Turn old(admission_, admission_.NewTicket());
  Admission::Turn young(admission_, admission_.NewTicket());
  Try(old);
  EXPECT_TRUE(admission_.crowded());
  EXPECT_FALSE(old.MayTry()) << "nothing changed";
  EXPECT_TRUE(young.MayTry());
}

TEST_F(AdmissionTest, AfterAChangeTheOldestTriesAgain) {
  Admission::Turn old(admission_, admission_.NewTicket());
  Admission::Turn young(admission_, admission_.NewTicket());
  Try(old);
  Try(young);
  EXPECT_FALSE(old.MayTry());
  admission_.NoteChange();
  EXPECT_FALSE(young.MayTry());
  EXPECT_TRUE(old.MayTry());
}

TEST_F(AdmissionTest, AChangeDuringATryIsNotLost) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  ASSERT_TRUE(turn.Await());
  admission_.NoteChange();
  turn.Refused();
  EXPECT_TRUE(turn.MayTry());
}

TEST_F(AdmissionTest, AnOperatorThatLeavesIsAChange) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  Try(turn);
  EXPECT_FALSE(turn.MayTry());
  ++progress_;
  EXPECT_TRUE(turn.Await());
}

TEST_F(AdmissionTest, WhoIsServedMakesWayForTheNext) {
  auto old =
      std::make_unique<Admission::Turn>(admission_, admission_.NewTicket());
  Admission::Turn young(admission_, admission_.NewTicket());
  ASSERT_TRUE(old->Await());
  EXPECT_FALSE(young.MayTry());
  old.reset();
  EXPECT_TRUE(young.MayTry());
}

TEST_F(AdmissionTest, AloneInTheProcessNobodyIsWaitedFor) {
  others_ = false;
  Admission::Turn turn(admission_, admission_.NewTicket());
  Try(turn);
  EXPECT_FALSE(turn.Await());
}

TEST_F(AdmissionTest, TheYoungestIsToldFirstAndOnlyAfterAQuietWhile) {
  auto old =
      std::make_unique<Admission::Turn>(admission_, admission_.NewTicket());
  auto young =
      std::make_unique<Admission::Turn>(admission_, admission_.NewTicket());
  Try(*old);
  Try(*young);
  std::atomic<int> told{0};
  std::thread waits([&] {
    EXPECT_FALSE(young->Await());
    EXPECT_EQ(now_.load(), kQuiet);
    ++told;
    young.reset();
  });
  now_ = kQuiet - 1;
  old->AwaitChange();
  EXPECT_EQ(told.load(), 0);
  now_ = kQuiet;
  waits.join();
  EXPECT_TRUE(old->Await()) << "the other's end is a change";
  old->Refused();
  now_ = 2 * kQuiet;
  EXPECT_FALSE(old->Await());
}

TEST_F(AdmissionTest, AnOperatorThatHasNotReturnedIsWaitedForLonger) {
  running_ = true;
  Admission::Turn turn(admission_, admission_.NewTicket());
  Try(turn);
  now_ = kRunning - 1;
  turn.AwaitChange();
  EXPECT_FALSE(turn.MayTry());
  std::thread leaves([&] {
    running_ = false;
    ++progress_;
  });
  EXPECT_TRUE(turn.Await());
  leaves.join();
  turn.Refused();
  running_ = true;
  now_ = 3 * kRunning;
  EXPECT_FALSE(turn.Await());
}

// Operators of other threads that have nothing to do with it.
TEST_F(AdmissionTest, ThreadIsNotRefusedForGoodWhileKernelsKeepWhatCouldLeave) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  others_ = false;
  device_busy_ = true;
  Try(turn);
  now_ += kRunning;
  admission_.NoteChange();
  ASSERT_TRUE(turn.Await()) << "alone and refused, and still not for good";
  turn.Refused();
  now_ += kBusy;
  EXPECT_FALSE(turn.Await()) << "nothing waits for ever";
}

// What left the device while it was busy may be what the thread lacked.
TEST_F(AdmissionTest, TimeOfABusyDeviceDoesNotCountOnceItIsIdle) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  device_busy_ = true;
  Try(turn);
  turn.AwaitChange();  // a look
  now_ += kBusy - kRunning - 1;
  device_busy_ = false;
  std::thread frees([this] {
    while (!admission_.crowded()) std::this_thread::yield();
    ++progress_;
  });
  EXPECT_TRUE(turn.Await()) << "the first look that finds it idle is not late";
  frees.join();
  turn.Refused();
  now_ += kRunning;
  EXPECT_FALSE(turn.Await());
}

TEST_F(AdmissionTest, OlderTurnWaitsUntilTheTryOfAYoungerIsOver) {
  Admission::Turn old(admission_, admission_.NewTicket());
  Admission::Turn young(admission_, admission_.NewTicket());
  Try(old);
  ASSERT_TRUE(young.MayTry());
  admission_.NoteChange();
  EXPECT_FALSE(old.MayTry()) << "its pins would void what the younger chose";
  young.Refused();
  EXPECT_TRUE(old.MayTry());
}

TEST_F(AdmissionTest, TurnsWithoutADeviceInCommonTryTogether) {
  Admission::Turn old(admission_, admission_.NewTicket(), 0b001);
  Admission::Turn other(admission_, admission_.NewTicket(), 0b010);
  Admission::Turn both(admission_, admission_.NewTicket(), 0b011);
  ASSERT_TRUE(old.MayTry());
  EXPECT_TRUE(other.MayTry());
  old.Refused();
  EXPECT_FALSE(both.MayTry()) << "the other tries";
  other.Refused();
  EXPECT_TRUE(both.MayTry());
  both.Refused();
  now_ += kQuiet;
  Admission::Turn third(admission_, admission_.NewTicket(), 0b100);
  ASSERT_TRUE(third.MayTry());
  EXPECT_FALSE(both.Await()) << "the youngest of those on its devices";
}

// What another thread's try frees may be what a refused thread lacks.
TEST_F(AdmissionTest, TimeInWhichAnotherThreadTriesDoesNotCount) {
  Admission::Turn old(admission_, admission_.NewTicket());
  Admission::Turn young(admission_, admission_.NewTicket());
  Try(old);
  ASSERT_TRUE(young.MayTry());
  now_ += kQuiet;
  old.AwaitChange();  // a look: the try takes long
  now_ += kRunning;   // it waits for the disk
  old.AwaitChange();
  young.Refused();
  ++progress_;
  EXPECT_TRUE(old.Await());
}

// It waited for the disk, or for another thread's step.
TEST_F(AdmissionTest, TimeOfItsOwnTriesDoesNotCount) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  running_ = true;
  Try(turn);
  admission_.NoteChange();
  ASSERT_TRUE(turn.Await());
  now_ += 2 * kBusy;
  turn.Refused();
  ++progress_;
  ASSERT_TRUE(turn.Await());
  turn.Refused();
  now_ += kRunning;
  EXPECT_FALSE(turn.Await());
}

// Each try chooses pages that do not leave in the end.
TEST_F(AdmissionTest, MomentsInWhichTheDeviceIsBusyCount) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  running_ = true;
  Try(turn);
  for (std::int64_t until = now_ + kRunning; now_ < until; now_ += kQuiet / 2) {
    device_busy_ = !device_busy_;
    ++progress_;  // another thread takes a pin back
    turn.AwaitChange();
  }
  EXPECT_FALSE(turn.Await());
}

TEST_F(AdmissionTest, YoungerTurnMayTryWhileTheOlderStandsStill) {
  Admission::Turn old(admission_, admission_.NewTicket());
  Admission::Turn young(admission_, admission_.NewTicket());
  ASSERT_TRUE(old.MayTry());
  EXPECT_FALSE(young.MayTry());
  old.BeginWait();
  EXPECT_FALSE(young.MayTry()) << "streams are done in no time, mostly";
  now_ += 20'000'000;
  EXPECT_TRUE(young.MayTry());
  old.EndWait();
  EXPECT_FALSE(young.MayTry());
}

TEST_F(AdmissionTest, WhoLacksMemoryIsNotKeptWaitingByUnrelatedProgress) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  for (now_ = 0; now_ < kQuiet; now_ += kQuiet / 4) {
    ++progress_;
    ASSERT_TRUE(turn.Await()) << now_;
    turn.Refused(Admission::Lack::kMemory);
  }
  ++progress_;
  EXPECT_FALSE(turn.Await());
}

TEST_F(AdmissionTest, WhoLacksMemoryWaitsWhileSomeIsFreedButNotForEver) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  int tries = 0;
  for (now_ = 0; now_ < kMemory; now_ += kQuiet / 2) {
    ++freed_;
    ++progress_;
    ASSERT_TRUE(turn.Await()) << now_;
    turn.Refused(Admission::Lack::kMemory);
    ++tries;
  }
  EXPECT_GT(tries, 10);
  ++freed_;
  ++progress_;
  EXPECT_FALSE(turn.Await());
}

TEST_F(AdmissionTest, NobodyWaitsForEverWhateverOthersDo) {
  Admission::Turn turn(admission_, admission_.NewTicket());
  for (now_ = 0; now_ < kRunning; now_ += kQuiet / 2) {
    ++progress_;
    ASSERT_TRUE(turn.Await()) << now_;
    turn.Refused();
  }
  ++progress_;
  EXPECT_FALSE(turn.Await());
}

TEST_F(AdmissionTest, WhatHasYetToBeginWaitsForTheOldestThatWasPassedOver) {
  Admission::Turn oldest(admission_, admission_.NewTicket());
  running_ = true;
  for (int pass = 0; pass < 8; ++pass) {
    Admission::Turn fresh(admission_, admission_.NewTicket(),
                          Admission::Turn::kAllDevices, /*fresh=*/true);
    Try(oldest);
    EXPECT_EQ(fresh.MayTry(), pass < 7) << pass;
  }
  Admission::Turn nested(admission_, admission_.NewTicket());
  Admission::Turn fresh(admission_, admission_.NewTicket(),
                        Admission::Turn::kAllDevices, /*fresh=*/true);
  Try(oldest);
  EXPECT_FALSE(fresh.MayTry()) << "operators under way leave first";
  Try(nested);  // what those need goes on
  EXPECT_FALSE(fresh.MayTry());
  running_ = false;
  EXPECT_TRUE(fresh.MayTry()) << "nobody runs, and the oldest was refused";
  running_ = true;
  EXPECT_FALSE(fresh.MayTry());
  now_ += 30'000'000;
  EXPECT_TRUE(fresh.MayTry()) << "who runs may wait for it";
}

TEST_F(AdmissionTest, NobodyIsCrowdedOnceTheRefusedAreGone) {
  {
    Admission::Turn turn(admission_, admission_.NewTicket());
    Try(turn);
    EXPECT_TRUE(admission_.crowded());
  }
  EXPECT_FALSE(admission_.crowded());
}

// Threads that want units of something there is not enough of for all, as
// operators want the device: everybody is served, whatever the order.
TEST(AdmissionThreads, EverybodyIsServed) {
  constexpr int kThreads = 8, kRounds = 200, kAll = 10, kEach = 7;
  std::atomic<int> free{kAll};
  std::atomic<std::uint64_t> served{0};
  Admission admission({.look =
                           [&] {
                             return Admission::World{.others = true,
                                                     .running = true,
                                                     .progress = served.load()};
                           },
                       .now_ns = &NowNs,
                       .quiet_ns = 60'000'000'000,
                       .running_ns = 60'000'000'000});
  std::vector<std::thread> threads;
  std::atomic<int> hopeless{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        {
          Admission::Turn turn(admission, admission.NewTicket());
          while (true) {
            if (!turn.Await()) {
              ++hopeless;
              return;
            }
            int seen = free.load();
            while (seen >= kEach &&
                   !free.compare_exchange_weak(seen, seen - kEach)) {
            }
            if (seen >= kEach) break;
            turn.Refused();
          }
        }
        free.fetch_add(kEach);
        ++served;
        if (admission.crowded()) admission.NoteChange();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hopeless.load(), 0);
  EXPECT_EQ(served.load(), std::uint64_t{kThreads} * kRounds);
}

}  // namespace
}  // namespace stratalloc
