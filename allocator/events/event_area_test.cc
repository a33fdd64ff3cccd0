// SPDX-License-Identifier: Apache-2.0
#include "allocator/events/event_area.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace stratalloc {
namespace {

std::string Folder() { return std::getenv("TEST_TMPDIR"); }

EventAreaOptions Small() {
  EventAreaOptions options;
  options.rings = 2;
  options.ring_capacity = 16;
  options.names_bytes = 4096;
  return options;
}

// An area is never unmapped; whoever counts leaks sees it here.
EventArea& Made(const EventAreaOptions& options) {
  static auto& made = *new std::vector<EventArea*>;
  made.push_back(*EventArea::Make(options));
  return *made.back();
}

std::string Whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(EventArea, SaysWhatNoAreaCanHave) {
  EventAreaOptions options = Small();
  options.ring_capacity = 17;
  const auto none = EventArea::Make(options);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("power of two"), std::string::npos);
}

TEST(EventArea, SaysWhyAFileCannotBeHad) {
  EventAreaOptions options = Small();
  options.file = Folder() + "/no/such/folder/x";
  const auto none = EventArea::Make(options);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find(options.file), std::string::npos);
  EXPECT_NE(none.error().message.find("No such file"), std::string::npos);
}

TEST(EventArea, IsReadableByItsOwnerAlone) {
  EventAreaOptions options = Small();
  options.file = Folder() + "/mode";
  std::ofstream(options.file) << "what was there";
  ASSERT_EQ(chmod(options.file.c_str(), 0644), 0);
  Made(options);
  struct stat found {};
  ASSERT_EQ(stat(options.file.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST(EventArea, NamesThatHaveNoRoomAreCounted) {
  EventArea& area = Made(Small());
  area.AddName(NameKind::kScope, 1, std::string(4000, 'x'));
  area.AddName(NameKind::kScope, 2, std::string(200, 'y'));
  area.AddName(NameKind::kScope, 3, "z");
  EXPECT_EQ(area.head().names_lost, 1u);
  EXPECT_EQ(area.head().names_used, 16u + 4000 + 16 + 8);
}

TEST(EventArea, MarksOfOneNameHaveOneNumberAndLeaveRoomForOthers) {
  EventArea& area = Made(Small());
  const std::uint32_t first = area.MarkOf("step");
  EXPECT_EQ(area.MarkOf("step"), first);
  EXPECT_EQ(area.head().names_used, 16u + 8);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_NE(area.MarkOf("step " + std::to_string(i)), first);
  }
  EXPECT_LE(area.head().names_used, 2048u);
  EXPECT_GT(area.head().names_used, 2048u - 32);
  EXPECT_EQ(area.head().names_lost, 1000 - (area.head().names_used - 24) / 24);
  EXPECT_EQ(area.MarkOf("step"), first);
  const std::uint64_t lost = area.head().names_lost;
  area.AddName(NameKind::kScope, 1, std::string(1900, 'x'));
  EXPECT_EQ(area.head().names_lost, lost);
}

// Whoever reads what a killed process left cannot.
TEST(EventArea, NamesAndMarksBringTheClockUpToDate) {
  EventArea& area = Made(Small());
  const auto measured = static_cast<double>(area.head().tick_length);
  const auto expect_again = [&] {
    EXPECT_NEAR(static_cast<double>(area.head().tick_length), measured,
                measured * 0.01);
    area.head().tick_length = 0;
  };
  expect_again();
  area.AddName(NameKind::kScope, 1, "net");
  expect_again();
  area.MarkOf("step");
  expect_again();
  area.MarkOf("step");
  expect_again();
}

// What the file is for: the process that writes it is killed.
TEST(EventArea, OutlivesItsProcess) {
  EventAreaOptions options = Small();
  options.file = Folder() + "/killed";
  const pid_t child = fork();
  if (child == 0) {
    EventArea& area = Made(options);
    area.AddName(NameKind::kScope, 7, "Net.layer");
    EventRing ring = area.ring(1);
    for (std::uint64_t i = 0; i < 20; ++i) {
      Event event;
      event.address = i;
      ring.Write(event);
    }
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  std::string bytes = Whole(options.file);
  EventAreaHead& head = *reinterpret_cast<EventAreaHead*>(bytes.data());
  EXPECT_EQ(std::memcmp(head.magic, EventAreaHead::kMagic, 8), 0);
  EXPECT_EQ(bytes.size(), head.area_bytes);
  EXPECT_EQ(head.process, static_cast<std::uint64_t>(child));
  EXPECT_EQ(head.redacted, 0u);
  char* const base = bytes.data() + head.rings_offset + head.ring_stride;
  const EventRing ring(
      reinterpret_cast<EventRing::Head*>(base),
      reinterpret_cast<EventRing::Word*>(base + sizeof(EventRing::Head)),
      head.ring_capacity);
  std::vector<Event> read;
  EXPECT_EQ(ring.Read(0, read), 4u);
  ASSERT_EQ(read.size(), 16u);
  EXPECT_EQ(read.front().address, 4u);
  EventName name;
  std::memcpy(&name, bytes.data() + head.names_offset, sizeof(name));
  const std::string text(bytes.data() + head.names_offset + sizeof(name),
                         name.bytes);
  EXPECT_EQ(text, "Net.layer");
  EXPECT_EQ(name.id, 7u);
  EXPECT_EQ(name.check, EventName::CheckOf(NameKind::kScope, 7, text));
}

// A store beyond what the disk has room for ends the process.
TEST(EventArea, ARingIsReservedBeforeItIsTouched) {
  EventAreaOptions options;
  options.rings = 2;
  options.file = std::string(std::getenv("TEST_TMPDIR")) + "/reserved";
  EventArea& made = Made(options);
  const auto blocks = [&] {
    struct stat found {};
    EXPECT_EQ(stat(options.file.c_str(), &found), 0);
    return found.st_blocks * 512;
  };
  const auto before = blocks();
  EXPECT_GE(before, options.names_bytes) << "the names, at once";
  EXPECT_TRUE(made.Reserve(0));
  EXPECT_GE(blocks() - before, 48 << 17);
}

}  // namespace
}  // namespace stratalloc
