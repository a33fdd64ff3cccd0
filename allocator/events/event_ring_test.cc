// SPDX-License-Identifier: Apache-2.0
#include "allocator/events/event_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace stratalloc {
namespace {

// A ring in memory of its own.
struct Owned {
  explicit Owned(std::uint64_t capacity)
      : words(
            std::make_unique<EventRing::Word[]>(capacity * EventRing::kWords)),
        ring(&head, words.get(), capacity) {}
  EventRing::Head head{};
  std::unique_ptr<EventRing::Word[]> words;
  EventRing ring;
};

// Every field follows from the number, so that a mixture of two is seen.
Event Numbered(std::uint64_t number) {
  Event event;
  event.ticks = number * 3;
  event.address = number * 5;
  event.bytes = number * 7;
  event.aux = number * 11;
  event.scope = static_cast<std::uint32_t>(number * 13);
  event.site = static_cast<std::uint16_t>(number * 17);
  event.beyond = static_cast<std::uint16_t>(number * 29);
  event.kind = static_cast<EventKind>(number % kEventKinds);
  event.category = static_cast<std::uint8_t>(number);
  event.device = static_cast<std::uint8_t>(number * 19);
  event.flags = static_cast<std::uint8_t>(number * 23);
  event.stamp = static_cast<std::uint32_t>(number + 1);
  return event;
}

TEST(EventRing, GivesBackWhatWasWrittenInOrder) {
  Owned owned(8);
  for (std::uint64_t i = 0; i < 5; ++i) owned.ring.Write(Numbered(i));
  std::vector<Event> read;
  EXPECT_EQ(owned.ring.Read(0, read), 0u);
  ASSERT_EQ(read.size(), 5u);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(read[i], Numbered(i));
}

TEST(EventRing, ReadsFromANumberOn) {
  Owned owned(8);
  for (std::uint64_t i = 0; i < 5; ++i) owned.ring.Write(Numbered(i));
  std::vector<Event> read = {Event{}};
  EXPECT_EQ(owned.ring.Read(3, read), 0u);
  ASSERT_EQ(read.size(), 3u) << "appended";
  EXPECT_EQ(read[1], Numbered(3));
  EXPECT_EQ(owned.ring.Read(5, read), 0u);
  EXPECT_EQ(owned.ring.Read(9, read), 0u) << "from the future there is none";
  EXPECT_EQ(read.size(), 3u);
}

TEST(EventRing, OverwritesTheOldestAndCountsThem) {
  Owned owned(8);
  for (std::uint64_t i = 0; i < 21; ++i) owned.ring.Write(Numbered(i));
  std::vector<Event> read;
  EXPECT_EQ(owned.ring.Read(0, read), 13u);
  ASSERT_EQ(read.size(), 8u);
  EXPECT_EQ(read.front(), Numbered(13));
  EXPECT_EQ(read.back(), Numbered(20));
}

// A writer that came by while the ring was read leaves gaps behind the first.
TEST(EventRing, SaysFromWhereOnNothingIsMissing) {
  Owned owned(8);
  for (std::uint64_t i = 0; i < 12; ++i) owned.ring.Write(Numbered(i));
  const auto whole_from = [&] {
    std::vector<Event> read = {Event{}};
    std::size_t whole = 0;
    owned.ring.Read(0, read, &whole);
    return whole < read.size() ? read[whole] : Event{};
  };
  EXPECT_EQ(whole_from(), Numbered(4)) << "those before were overwritten";
  const auto overwrite = [&](std::uint64_t number) {
    owned.words[(number % 8) * EventRing::kWords + EventRing::kWords - 1] = 0;
  };
  overwrite(6);
  EXPECT_EQ(whole_from(), Numbered(7));
  overwrite(9);
  EXPECT_EQ(whole_from(), Numbered(10));
  overwrite(11);
  EXPECT_EQ(whole_from(), Event{}) << "nothing is whole";
}

// What a killed writer leaves: the place of the next event, half written.
TEST(EventRing, LeavesATornEventOut) {
  Owned owned(4);
  for (std::uint64_t i = 0; i < 6; ++i) owned.ring.Write(Numbered(i));
  EventRing::Word* const torn = &owned.words[2 * EventRing::kWords];
  torn[EventRing::kWords - 1] = 0;
  torn[0] = 12345;
  std::vector<Event> read;
  EXPECT_EQ(owned.ring.Read(0, read), 3u) << "0 and 1 overwritten, 2 torn";
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read.front(), Numbered(3));
}

TEST(EventRing, NeverMixesTwoEventsWhileItIsWritten) {
  constexpr std::uint64_t kEvents = 400'000;
  Owned owned(64);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kEvents; ++i) owned.ring.Write(Numbered(i));
    done = true;
  });
  std::uint64_t from = 0, seen = 0, lost = 0;  // of those before `from`
  std::vector<Event> read;
  while (!done || from < kEvents) {
    read.clear();
    const std::uint64_t lost_now = owned.ring.Read(from, read);
    std::uint64_t next = from;
    for (const Event& event : read) {
      const std::uint64_t number = event.ticks / 3;
      ASSERT_EQ(event, Numbered(number));
      ASSERT_GE(number, next);
      next = number + 1;
    }
    // What was there when it was read was seen or was lost.
    from += read.size() + lost_now;
    ASSERT_GE(from, next);
    ASSERT_LE(from, owned.ring.written());
    seen += read.size();
    lost += lost_now;
  }
  writer.join();
  EXPECT_EQ(from, kEvents);
  EXPECT_EQ(seen + lost, kEvents);
  EXPECT_GE(seen, 64u) << "the last ones lay still";
}

}  // namespace
}  // namespace stratalloc
