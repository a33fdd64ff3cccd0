// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/recorder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "telemetry/recording/area_made_test.h"
#include "telemetry/recording/recording_file.h"

namespace stratalloc {
namespace {

using Json = nlohmann::json;

EventAreaOptions Area() {
  EventAreaOptions area;
  area.ring_capacity = 1024;
  area.file = Path("area");
  return area;
}

struct Sections {
  Json head;
  std::vector<FileEvent> events;
};

// The format, read as its header says it.
Sections Read(const std::string& path) {
  const std::string bytes = Whole(path);
  EXPECT_EQ(bytes.substr(0, 8), "STRATREC");
  Sections sections;
  std::size_t at = 16;
  while (bytes.substr(at, 4) != "END.") {
    std::uint64_t size = 0;
    std::memcpy(&size, &bytes[at + 8], 8);
    const std::string held = bytes.substr(at + 16, size);
    if (bytes.substr(at, 4) == "HEAD") sections.head = Json::parse(held);
    if (bytes.substr(at, 4) == "EVNT") {
      sections.events.resize(size / sizeof(FileEvent));
      if (size > 0) std::memcpy(sections.events.data(), held.data(), size);
    }
    at += 16 + (size + 7) / 8 * 8;
  }
  EXPECT_EQ(at + 16, bytes.size());
  return sections;
}

std::vector<Json> NoDevices() { return {}; }

void RecordAlloc(std::uint64_t address, std::uint64_t order) {
  Event event;
  event.kind = EventKind::kAlloc;
  event.address = address;
  event.aux = OrderAndPool(order, 1);
  EventRecorder::Record(event);
}

// One process, one area: the tests below share it.
TEST(Recorder, WritesWhatHappenedSince) {
  const auto first = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(first) << first.error().message;
  RecordAlloc(1, 1);
  const auto second = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(second);
  EventRecorder::Name(NameKind::kScope, 4, "Net");
  RecordAlloc(2, 2);
  ASSERT_TRUE(Recorder::Get().Write(*second, Path("b"), {}, NoDevices, true));
  EXPECT_TRUE(EventRecorder::on()) << "the first goes on";
  RecordAlloc(3, 3);
  RecordingOptions options;
  options.about = {{"command", "x.py"}};
  ASSERT_TRUE(
      Recorder::Get().Write(*first, Path("a"), options, NoDevices, true));
  EXPECT_FALSE(EventRecorder::on());

  const Sections a = Read(Path("a")), b = Read(Path("b"));
  ASSERT_EQ(a.events.size(), 3u);
  ASSERT_EQ(b.events.size(), 1u);
  EXPECT_EQ(b.events[0].address, 2u);
  EXPECT_EQ(a.events[2].pool, 1u);
  EXPECT_EQ(a.head["scopes"], Json::parse(R"([[4, "Net"]])"));
  EXPECT_EQ(a.head["about"]["command"], "x.py");
  EXPECT_EQ(a.head["overwritten"], 0);
  EXPECT_FALSE(a.head["torn"]);

  const Status again =
      Recorder::Get().Write(*first, Path("a"), {}, NoDevices, true);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kNotFound);
}

// What a device had at the start is not told again, nor what came after its
// end.
TEST(Recorder, HoldsEventsAgainstTheStatesOfDevices) {
  const auto at = [](int order) {
    return [order] {
      return std::vector<Json>{{{"index", 0}, {"order", order}}};
    };
  };
  const auto recording = Recorder::Get().Begin(Area(), at(10));
  ASSERT_TRUE(recording);
  for (std::uint64_t order = 9; order < 14; ++order) RecordAlloc(order, order);
  ASSERT_TRUE(Recorder::Get().Write(*recording, Path("c"), {}, at(12), true));
  const Sections c = Read(Path("c"));
  ASSERT_EQ(c.events.size(), 2u);
  EXPECT_EQ(c.events[0].address, 11u);
  EXPECT_EQ(c.events[1].address, 12u);
  EXPECT_EQ(c.head["start"][0]["order"], 10);
}

TEST(Recorder, RedactedLeavesNamesOut) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  EventRecorder::Name(NameKind::kSite, 4, "secret.py:1 f");
  EventRecorder::Name(NameKind::kCall, 20000, "0 4 secret.py:1 f");
  EventRecorder::Name(NameKind::kPool, 1, "0 0 0 0");
  RecordingOptions options;
  options.redact = true;
  options.about = {{"command", "secret.py"}};
  ASSERT_TRUE(
      Recorder::Get().Write(*recording, Path("d"), options, NoDevices, true));
  const std::string bytes = Whole(Path("d"));
  EXPECT_EQ(bytes.find("secret"), std::string::npos);
  EXPECT_EQ(bytes.find("Net"), std::string::npos);
  EXPECT_EQ(Read(Path("d")).head["pools"][0][1], "0 0 0 0");
  EXPECT_TRUE(Read(Path("d")).head["sites"].empty());
}

TEST(Recorder, ACallSaysWhoCalledItAndTheUsersLine) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  EventRecorder::Name(NameKind::kCall, 20001, "20000 4 a b.py:2 g h");
  EventRecorder::Name(NameKind::kCall, 20002, "20000 torn");
  ASSERT_TRUE(
      Recorder::Get().Write(*recording, Path("k"), {}, NoDevices, true));
  const Json head = Read(Path("k")).head;
  EXPECT_EQ(head["sites"].back(),
            Json::parse(R"([20001, "a b.py:2 g h", 20000, 4])"));
  EXPECT_EQ(head["stacks_lost"], 0);
}

TEST(Recorder, ARecordingIsItsOwnersAndReplacesAWholeOneOnly) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  std::ofstream(Path("e")) << "what was there";
  ASSERT_TRUE(
      Recorder::Get().Write(*recording, Path("e"), {}, NoDevices, false));
  struct stat found {};
  ASSERT_EQ(stat(Path("e").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const Status none =
      Recorder::Get().Write(*recording, Path("no/folder"), {}, NoDevices, true);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kIo);
  EXPECT_NE(none.error().message.find("No such file"), std::string::npos);
}

// As on a full disk: a write fails in the middle.
TEST(Recorder, AWriteThatFailsLeavesTheFileThatWasThere) {
  Put(Path("kept"), "what was there");
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{40, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status failed = WriteRecording(Path("kept"), "{}", {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_NE(failed.error().message.find("File too large"), std::string::npos);
  EXPECT_EQ(Whole(Path("kept")), "what was there");
  const std::string beside =
      Path("kept") + "." + std::to_string(getpid()) + ".tmp";
  EXPECT_NE(access(beside.c_str(), F_OK), 0);
}

TEST(Recorder, WhoTakesLongToWriteKeepsNobodyElseWaiting) {
  const auto slow = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(slow);
  std::promise<void> asked, others_are_done;
  const DeviceStates slow_devices = [&] {
    asked.set_value();
    others_are_done.get_future().wait();
    return std::vector<Json>{};
  };
  std::thread writer([&] {
    EXPECT_TRUE(
        Recorder::Get().Write(*slow, Path("h"), {}, slow_devices, true));
  });
  asked.get_future().wait();
  const Status twice =
      Recorder::Get().Write(*slow, Path("i"), {}, NoDevices, true);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, ErrorCode::kNotFound);
  const auto other = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(other);
  Recorder::Get().Forget(*other);
  EXPECT_TRUE(EventRecorder::on()) << "the slow one is not over yet";
  others_are_done.set_value();
  writer.join();
}

TEST(Recorder, AForkedChildHasNoneOfItsParents) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  const pid_t child = fork();
  if (child == 0) {
    Recorder::AbandonAfterFork();
    const bool refused =
        !Recorder::Get().Write(*recording, Path("child"), {}, NoDevices, true);
    EventAreaOptions own;
    own.ring_capacity = 16;
    const auto anew = Recorder::Get().Begin(own, NoDevices);
    if (!anew) _exit(2);
    RecordAlloc(8, 8);
    const bool written = Recorder::Get()
                             .Write(*anew, Path("child"), {}, NoDevices, true)
                             .has_value();
    _exit(refused && written ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Read(Path("child")).events.size(), 1u);
  ASSERT_TRUE(
      Recorder::Get().Write(*recording, Path("l"), {}, NoDevices, true));
  EXPECT_TRUE(Read(Path("l")).events.empty());
}

// One that begins while the last other one ends goes on.
TEST(Recorder, EventsAreRecordedWhileOneBegins) {
  const auto ends = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(ends);
  const auto begins = Recorder::Get().Begin(Area(), [&] {
    Recorder::Get().Forget(*ends);
    return std::vector<Json>{};
  });
  ASSERT_TRUE(begins);
  EXPECT_TRUE(EventRecorder::on());
  RecordAlloc(5, 5);
  ASSERT_TRUE(Recorder::Get().Write(*begins, Path("j"), {}, NoDevices, true));
  EXPECT_EQ(Read(Path("j")).events.size(), 1u);
}

TEST(Recorder, RecoversWhatTheAreaHas) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  RecordAlloc(77, 100);
  ASSERT_TRUE(Recorder::Recover(Path("area"), Path("f"), false));
  const Sections f = Read(Path("f"));
  EXPECT_TRUE(f.head["torn"]);
  ASSERT_FALSE(f.events.empty());
  EXPECT_EQ(f.events.back().address, 77u);
  EXPECT_EQ(f.head["scopes"][0][1], "Net");
  EXPECT_FALSE(Recorder::Recover(Path("f"), Path("g"), false))
      << "a recording is no area";
}

TEST(Recorder, WhatIsLeftOfARedactedProcessHasNoNames) {
  std::string bytes = Whole(Path("area"));
  reinterpret_cast<EventAreaHead*>(bytes.data())->redacted = 1;
  Put(Path("secret"), bytes);
  ASSERT_TRUE(Recorder::Recover(Path("secret"), Path("h"), false));
  EXPECT_TRUE(Read(Path("h")).head["redacted"]);
  EXPECT_TRUE(Read(Path("h")).head["scopes"].empty());
}

TEST(Recorder, WritesWhereALinkPoints) {
  Put(Path("pointed"), "old");
  ASSERT_EQ(symlink("pointed", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteRecording(Path("link"), "{}", {}));
  struct stat found {};
  ASSERT_EQ(lstat(Path("link").c_str(), &found), 0);
  EXPECT_TRUE(S_ISLNK(found.st_mode));
  EXPECT_EQ(Whole(Path("pointed")).substr(0, 8), "STRATREC");
}

TEST(Recorder, ReplacesNoDevice) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  const Status refused = WriteRecording(Path("fifo"), "{}", {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("no regular file"), std::string::npos);
  struct stat found {};
  ASSERT_EQ(stat(Path("fifo").c_str(), &found), 0);
  EXPECT_TRUE(S_ISFIFO(found.st_mode));
}

// Last, since it overwrites what the others wrote.
TEST(Recorder, SaysFromWhenOnNothingWasOverwritten) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  for (std::uint64_t order = 1; order <= 1500; ++order) RecordAlloc(1, order);
  ASSERT_TRUE(
      Recorder::Get().Write(*recording, Path("lost"), {}, NoDevices, true));
  const Sections lost = Read(Path("lost"));
  EXPECT_EQ(lost.head["overwritten"], 1500 - 1024);
  ASSERT_EQ(lost.events.size(), 1024u);
  EXPECT_EQ(lost.head["complete_from"], lost.events[0].time);
}

// As when the thread writes while its ring is read.
TEST(Recorder, AGapIsNotOverlooked) {
  const auto recording = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(recording);
  for (std::uint64_t order = 1; order <= 10; ++order) RecordAlloc(1, order);
  EventArea& area = *EventRecorder::area();
  for (std::uint64_t i = 0; i < area.head().rings_used; ++i) {
    const EventRing ring = area.ring(i);
    if (ring.head().thread != static_cast<std::uint64_t>(gettid())) continue;
    auto* const words = reinterpret_cast<EventRing::Word*>(
        reinterpret_cast<char*>(&ring.head()) + sizeof(EventRing::Head));
    const std::uint64_t fifth = (ring.written() - 6) & (ring.capacity() - 1);
    words[(fifth + 1) * EventRing::kWords - 1] = 0;
  }
  ASSERT_TRUE(
      Recorder::Get().Write(*recording, Path("gap"), {}, NoDevices, true));
  const Sections gap = Read(Path("gap"));
  EXPECT_EQ(gap.head["overwritten"], 1);
  ASSERT_EQ(gap.events.size(), 9u);
  EXPECT_EQ(gap.head["complete_from"], gap.events[4].time);
  EXPECT_GT(gap.events[4].time, gap.events[3].time);
}

TEST(Recorder, WhatWasLostBeforeItIsNotItsOwn) {
  const auto first = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(first);
  EventRecorder::CountLostStack();
  const auto second = Recorder::Get().Begin(Area(), NoDevices);
  ASSERT_TRUE(second);
  EventRecorder::CountLostStack();
  for (const auto& [recording, stacks] :
       {std::pair{*first, 2}, std::pair{*second, 1}}) {
    ASSERT_TRUE(
        Recorder::Get().Write(recording, Path("own"), {}, NoDevices, true));
    EXPECT_EQ(Read(Path("own")).head["stacks_lost"], stacks);
  }
}

}  // namespace
}  // namespace stratalloc
