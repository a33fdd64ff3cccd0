// SPDX-License-Identifier: Apache-2.0
#include "telemetry/area_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace stratalloc {
namespace {

std::string Path(const char* name) {
  return std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
}

EventAreaOptions Small(const std::string& file) {
  EventAreaOptions options;
  options.rings = 3;
  options.ring_capacity = 64;
  options.names_bytes = 4096;
  options.file = file;
  return options;
}

std::string Whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<long>(bytes.size()));
}

// What a process with two threads that wrote leaves.
std::string Good() {
  const std::string path = Path("good");
  EventArea& area = **EventArea::Make(Small(path));
  area.head().rings_used = 2;
  for (std::uint64_t r = 0; r < 2; ++r) {
    EventRing ring = area.ring(r);
    ring.head().thread = 70 + r;
    for (std::uint64_t i = 0; i < 10; ++i) {
      Event event;
      event.kind = EventKind::kMark;
      event.address = r * 100 + i;
      ring.Write(event);
    }
  }
  area.AddName(NameKind::kScope, 5, "Net.\xF0\x9F\x98\x80");
  area.AddName(NameKind::kMark, 1, "");
  area.AddName(NameKind::kSite, 2, "a.py:3 f");
  return Whole(path);
}

TEST(AreaFile, GivesWhatWasWritten) {
  Good();
  const auto content = ReadAreaFile(Path("good"));
  ASSERT_TRUE(content) << content.error().message;
  ASSERT_EQ(content->rings.size(), 2u);
  EXPECT_EQ(content->rings[1].thread, 71u);
  ASSERT_EQ(content->rings[1].events.size(), 10u);
  EXPECT_EQ(content->rings[1].events[9].address, 109u);
  ASSERT_EQ(content->names.size(), 3u);
  EXPECT_EQ(content->names[0].text, "Net.\xF0\x9F\x98\x80");
  EXPECT_EQ(content->names[1].text, "");
  EXPECT_EQ(content->names[2].id, 2u);
  EXPECT_FALSE(content->closed);
  EXPECT_EQ(content->overwritten, 0u);
  EXPECT_EQ(content->names_lost, 0u);
}

TEST(AreaFile, SaysWhatIsNoArea) {
  for (const std::string& bytes :
       {std::string(), std::string("STRATRNG"), std::string(5000, 'x')}) {
    Put(Path("bad"), bytes);
    const auto content = ReadAreaFile(Path("bad"));
    ASSERT_FALSE(content);
    EXPECT_EQ(content.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(content.error().message.find(Path("bad")), std::string::npos);
  }
  EXPECT_FALSE(ReadAreaFile(Path("nowhere")));
  EXPECT_FALSE(ReadAreaFile("/dev/zero"));
}

TEST(AreaFile, ATruncatedFileIsNone) {
  const std::string good = Good();
  for (const std::size_t size : {good.size() - 1, good.size() / 2,
                                 std::size_t{4096}, sizeof(EventAreaHead)}) {
    Put(Path("cut"), good.substr(0, size));
    const auto content = ReadAreaFile(Path("cut"));
    ASSERT_FALSE(content) << size;
    EXPECT_NE(content.error().message.find("truncated"), std::string::npos)
        << content.error().message;
  }
}

TEST(AreaFile, ATornNameEndsTheNames) {
  std::string bytes = Good();
  EventAreaHead head;
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof(head));
  // The second byte of the first name's text.
  bytes[head.names_offset + sizeof(EventName) + 1] ^= 1;
  Put(Path("torn"), bytes);
  const auto content = ReadAreaFile(Path("torn"));
  ASSERT_TRUE(content);
  EXPECT_EQ(content->names.size(), 0u);
  EXPECT_EQ(content->names_lost, 1u);
  EXPECT_EQ(content->rings[0].events.size(), 10u) << "events are whole";
}

// Bytes that were turned at random: an error or fewer events, never a crash,
// and nothing that is not in the file.
TEST(AreaFile, BelievesNothing) {
  const std::string good = Good();
  std::mt19937_64 random(7);
  const char* const wanted = std::getenv("STRATALLOC_FUZZ_INPUTS");
  const int inputs = wanted != nullptr ? std::atoi(wanted) : 3000;
  std::vector<std::uint64_t> aligned;
  for (int i = 0; i < inputs; ++i) {
    std::string bytes = good;
    // Most of what may go wrong is in the head and in the heads of rings.
    const std::size_t most =
        random() % 4 != 0 ? sizeof(EventAreaHead) + 64 : bytes.size();
    for (std::uint64_t turns = 1 + random() % 4; turns > 0; --turns) {
      const std::size_t at = random() % most;
      if (random() % 2 == 0) {
        bytes[at] = static_cast<char>(random());
      } else if (at + 8 <= bytes.size()) {
        const std::uint64_t edge[] = {0, 1, ~std::uint64_t{0},
                                      std::uint64_t{1} << (random() % 64),
                                      bytes.size()};
        std::memcpy(&bytes[at & ~std::size_t{7}], &edge[random() % 5], 8);
      }
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    aligned.assign(bytes.size() / 8 + 1, 0);
    std::memcpy(aligned.data(), bytes.data(), bytes.size());
    const auto content = ReadArea(reinterpret_cast<const char*>(aligned.data()),
                                  bytes.size(), "fuzzed");
    if (!content) {
      ASSERT_FALSE(content.error().message.empty());
      continue;
    }
    std::size_t events = 0, text = 0;
    for (const RingEvents& ring : content->rings) events += ring.events.size();
    for (const NameRow& name : content->names) text += name.text.size();
    ASSERT_LE(events * sizeof(Event) + text, bytes.size());
    Collect(content->rings, content->clock);
  }
}

// A process that is killed while it writes, again and again: what is read is a
// line of events without a gap, and only the last may be missing.
TEST(AreaFile, EveryKilledProcessLeavesWholeEvents) {
  const char* const wanted = std::getenv("STRATALLOC_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 20;
  for (int i = 0; i < kills; ++i) {
    const std::string path = Path("killed");
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      EventArea& area = **EventArea::Make(Small(path));
      area.head().rings_used = 1;
      EventRing ring = area.ring(0);
      for (std::uint64_t n = 0;; ++n) {
        Event event;
        event.kind = EventKind::kMark;
        event.address = n;
        event.bytes = n * 3;
        event.scope = static_cast<std::uint32_t>(n * 5);
        ring.Write(event);
        // The pipe's answer says that it is in the middle of writing.
        if (n == 1000 && write(ready[1], "x", 1) != 1) _exit(1);
      }
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(ready[0]);
    close(ready[1]);
    const auto content = ReadAreaFile(path);
    ASSERT_TRUE(content) << content.error().message;
    const std::vector<Event>& events = content->rings[0].events;
    ASSERT_GE(events.size(), 63u);
    for (std::size_t e = 0; e < events.size(); ++e) {
      ASSERT_EQ(events[e].address, events[0].address + e);
      ASSERT_EQ(events[e].bytes, events[e].address * 3);
      ASSERT_EQ(events[e].scope,
                static_cast<std::uint32_t>(events[e].address * 5));
    }
  }
}

}  // namespace
}  // namespace stratalloc
