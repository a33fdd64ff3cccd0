// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/area_file.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "telemetry/recording/area_made_test.h"

namespace stratalloc {
namespace {

// What a process with two threads that wrote leaves.
std::string Good() {
  const std::string path = Path("good");
  EventArea& area = Made(path, 64, 4096);
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
  EXPECT_FALSE(content->redacted);
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

TEST(AreaFile, NobodyWaitsForAPipe) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0) << std::strerror(errno);
  const auto content = ReadAreaFile(Path("pipe"));
  unlink(Path("pipe").c_str());
  ASSERT_FALSE(content);
  EXPECT_NE(content.error().message.find("no regular file"), std::string::npos);
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

// Event n, all of whose fields follow from n.
Event Numbered(std::uint64_t n) {
  Event event;
  event.kind = EventKind::kMark;
  event.address = n;
  event.bytes = n * 3;
  event.scope = static_cast<std::uint32_t>(n * 5);
  return event;
}

// Writes to `path` until it is killed; `written` says which event is whole.
[[noreturn]] void WriteForEver(const std::string& path,
                               std::atomic<std::uint64_t>& written) {
  EventArea& area = Made(path, 64, 4096);
  area.head().rings_used = 1;
  EventRing ring = area.ring(0);
  for (std::uint64_t n = 0;; ++n) {
    ring.Write(Numbered(n));
    written.store(n, std::memory_order_release);
  }
}

// A process that is killed while it writes, again and again: what is read is a
// line of events without a gap, up to the last that was written before.
TEST(AreaFile, AKilledProcessLeavesEveryEventThatItWrote) {
  const char* const wanted = std::getenv("STRATALLOC_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 20;
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& written = *new (shared) std::atomic<std::uint64_t>(0);
  std::mt19937_64 random(3);
  for (int i = 0; i < kills; ++i) {
    const std::string path = Path("killed");
    written = 0;
    const pid_t child = fork();
    if (child == 0) WriteForEver(path, written);
    // Anywhere in the ring, and in its first rounds.
    const std::uint64_t moment = 1 + random() % 2000;
    while (written.load(std::memory_order_acquire) < moment) sched_yield();
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    const std::uint64_t last = written.load();
    const auto content = ReadAreaFile(path);
    ASSERT_TRUE(content) << content.error().message;
    const std::vector<Event>& events = content->rings[0].events;
    // Its oldest may have made room for the one that it was writing.
    ASSERT_GE(events.size(), std::min<std::uint64_t>(63, last + 1));
    ASSERT_GE(events.back().address, last);
    ASSERT_LE(events.back().address, last + 1);
    for (std::size_t e = 0; e < events.size(); ++e) {
      const std::uint64_t number = events[0].address + e;
      ASSERT_EQ(events[e].address, number);
      ASSERT_EQ(events[e].bytes, number * 3);
      ASSERT_EQ(events[e].scope, static_cast<std::uint32_t>(number * 5));
    }
  }
}

}  // namespace
}  // namespace stratalloc
