// SPDX-License-Identifier: Apache-2.0
// One area for the whole test: a process has one.
#include "allocator/events/event_recorder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace stratalloc {
namespace {

constexpr std::uint64_t kRings = 12, kCapacity = 1024;

EventAreaOptions Options() {
  EventAreaOptions options;
  options.rings = kRings;
  options.ring_capacity = kCapacity;
  options.names_bytes = 1 << 21;
  return options;
}

class EventRecorderTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(EventRecorder::Start(Options())); }
  void TearDown() override { EventRecorder::Stop(); }
};

void RecordNumber(std::uint64_t number) {
  if (!EventRecorder::on()) return;
  Event event;
  event.kind = EventKind::kMark;
  event.address = number;
  EventRecorder::Record(event);
}

std::vector<std::uint64_t> NumbersOf(const EventRecorder::Reading& reading) {
  std::vector<std::uint64_t> numbers;
  for (const auto& ring : reading.rings) {
    for (const Event& event : ring.events) {
      if (event.kind == EventKind::kMark) numbers.push_back(event.address);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST_F(EventRecorderTest, CountsWhatWasWrittenAndWhatIsNoMore) {
  const EventRecorder::Counts before = EventRecorder::Counted();
  std::thread([] {
    for (std::uint64_t i = 0; i < kCapacity + 9; ++i) RecordNumber(i);
  }).join();
  const EventRecorder::Counts after = EventRecorder::Counted();
  // Those of the thread, and that it took the ring.
  EXPECT_EQ(after.written - before.written, kCapacity + 10);
  EXPECT_GE(after.overwritten - before.overwritten, 10u);
  EXPECT_EQ(after.without_ring, before.without_ring);
  EXPECT_LE(after.overwritten, after.written);
}

TEST_F(EventRecorderTest, RecordsWhileItIsOn) {
  const auto since = EventRecorder::Now();
  RecordNumber(1);
  EventRecorder::Stop();
  RecordNumber(2);
  ASSERT_TRUE(EventRecorder::Start(Options()));
  RecordNumber(3);
  EXPECT_EQ(NumbersOf(EventRecorder::Read(since)),
            (std::vector<std::uint64_t>{1, 3}));
}

TEST_F(EventRecorderTest, SizeAndFileAreSetOnce) {
  EventAreaOptions other = Options();
  other.ring_capacity = 2048;
  const Status again = EventRecorder::Start(other);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("1024"), std::string::npos);
  EXPECT_TRUE(EventRecorder::on());
  EXPECT_TRUE(EventRecorder::Start(std::nullopt)) << "no wish is no other wish";
}

TEST_F(EventRecorderTest, TimeNeverRunsBackwardsInARing) {
  const auto since = EventRecorder::Now();
  for (std::uint64_t i = 0; i < 500; ++i) RecordNumber(i);
  for (const auto& ring : EventRecorder::Read(since).rings) {
    EXPECT_TRUE(std::is_sorted(
        ring.events.begin(), ring.events.end(),
        [](const Event& a, const Event& b) { return a.ticks < b.ticks; }));
  }
}

// Eight writers, and a reader that reads all the while.
TEST_F(EventRecorderTest, LosesNothingItDoesNotCount) {
  constexpr std::uint64_t kWriters = 8, kEach = 20'000;
  const auto since = EventRecorder::Now();
  std::atomic<std::uint64_t> running{kWriters};
  std::vector<std::thread> writers;
  for (std::uint64_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (std::uint64_t i = 0; i < kEach; ++i) RecordNumber(w * kEach + i);
      --running;
    });
  }
  while (running > 0) {
    const auto reading = EventRecorder::Read(since);
    for (const auto& ring : reading.rings) {
      std::uint64_t last = 0;
      for (const Event& event : ring.events) {
        if (event.kind != EventKind::kMark) continue;
        if (last != 0 && event.address / kEach == last / kEach) {
          ASSERT_GT(event.address, last);
        }
        last = event.address;
      }
    }
  }
  for (std::thread& writer : writers) writer.join();
  const auto reading = EventRecorder::Read(since);
  std::uint64_t read = 0, lost = reading.events_lost;
  for (const auto& ring : reading.rings) {
    read += ring.events.size();
    lost += ring.lost;
  }
  // Each thread's first event says which thread it is.
  EXPECT_EQ(read + lost, kWriters * kEach + kWriters);
  const auto numbers = NumbersOf(reading);
  EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), numbers.size());
}

TEST_F(EventRecorderTest, AnEndedThreadsRingIsTakenAgainWhenNoneIsLeft) {
  const auto since = EventRecorder::Now();
  for (std::uint64_t i = 0; i < 3 * kRings; ++i) {
    std::thread([i] { RecordNumber(1'000'000 + i); }).join();
  }
  const auto reading = EventRecorder::Read(since);
  EXPECT_LE(reading.rings.size(), kRings);
  const auto numbers = NumbersOf(reading);
  EXPECT_EQ(numbers.size(), 3 * kRings);
  std::set<std::uint64_t> threads;
  for (const auto& ring : reading.rings) {
    for (const Event& event : ring.events) {
      if (event.kind == EventKind::kThread) threads.insert(event.address);
    }
  }
  EXPECT_GE(threads.size(), kRings) << "each says who it is";
}

TEST_F(EventRecorderTest, AThreadWithoutARingIsCounted) {
  std::atomic<bool> go{false};
  std::atomic<std::uint64_t> waiting{0};
  std::vector<std::thread> threads;
  const std::uint64_t before = EventRecorder::Read({}).events_lost;
  for (std::uint64_t i = 0; i < kRings + 2; ++i) {
    threads.emplace_back([&] {
      RecordNumber(1);
      ++waiting;
      while (!go) std::this_thread::yield();
    });
  }
  while (waiting < kRings + 2) std::this_thread::yield();
  const std::uint64_t lost = EventRecorder::Read({}).events_lost - before;
  EXPECT_GE(lost, 2u);
  go = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EventRecorderTest, APoolForWhichNoNumberIsLeftIsANameThatIsLost) {
  const auto lost = [] { return EventRecorder::Read({}).names_lost; };
  const std::uint64_t before = lost();
  for (std::uint32_t number = 1; number <= 0xffff; ++number) {
    ASSERT_EQ(EventRecorder::NamePool("p"), number);
  }
  EXPECT_EQ(lost(), before);
  EXPECT_EQ(EventRecorder::NamePool("p"), 0u);
  EXPECT_EQ(EventRecorder::NamePool("q"), 0u);
  EXPECT_EQ(lost(), before + 2);
}

// Nothing of its parent's, that is: names neither; and what it begins itself is
// its own.
TEST_F(EventRecorderTest, AForkedChildRecordsNothingUntilItBeginsAnew) {
  const std::uint64_t names = EventRecorder::area()->head().names_used;
  const auto since = EventRecorder::Now();
  RecordNumber(41);
  const pid_t child = fork();
  if (child == 0) {
    EventRecorder::AbandonAfterFork();
    RecordNumber(42);
    EventRecorder::Name(NameKind::kScope, 42, "of the child");
    if (EventRecorder::on()) _exit(1);
    EventAreaOptions own;
    own.ring_capacity = 16;
    if (!EventRecorder::Start(own)) _exit(2);
    RecordNumber(43);
    const bool right =
        NumbersOf(EventRecorder::Read({})) == std::vector<std::uint64_t>{43};
    _exit(right ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(NumbersOf(EventRecorder::Read(since)),
            std::vector<std::uint64_t>{41});
  EXPECT_EQ(EventRecorder::area()->head().names_used, names);
}

}  // namespace
}  // namespace stratalloc
