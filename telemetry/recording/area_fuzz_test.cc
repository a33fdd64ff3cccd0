// SPDX-License-Identifier: Apache-2.0
// Files of event rings that were damaged at random, from one seed for each
// thing that a process may leave: they are read, or refused with a sentence;
// never a crash, never more than the file has, and what is recovered of them is
// a recording.
//
// STRATALLOC_FUZZ_INPUTS says how many (//tests/system/long:area_fuzz: a
// million).
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/recording/area_file.h"
#include "telemetry/recording/area_made_test.h"
#include "telemetry/recording/recorder.h"

namespace stratalloc {
namespace {

using Random = std::mt19937_64;

// What stands in an area; `file` is its content so far.
struct Seed {
  const char* name;
  EventArea* area;
  std::string bytes() const { return Whole(area->file()); }
};

Seed Begin(const char* name) { return {name, &Made(Path(name), 32, 1024)}; }

EventRing RingOf(const Seed& seed, std::uint64_t index) {
  seed.area->head().rings_used = index + 1;
  EventRing ring = seed.area->ring(index);
  ring.head().thread = 70 + index;
  return ring;
}

// Each kind on each device, and some that no version has.
void WriteEveryKind(EventRing ring) {
  for (int kind = 0; kind <= kEventKinds; ++kind) {
    Event event;
    event.kind = static_cast<EventKind>(kind);
    event.ticks = 1000 + static_cast<std::uint64_t>(kind);
    event.address = 4096;
    event.bytes = 1000;
    event.aux = HasOrder(event.kind)
                    ? OrderAndPool(static_cast<std::uint64_t>(kind) + 1, 1)
                    : 77;
    event.scope = 5;
    event.site = 2;
    event.category = static_cast<std::uint8_t>(kind);
    event.device = static_cast<std::uint8_t>(kind % 18);
    ring.Write(event);
  }
}

void AddNames(const Seed& seed) {
  seed.area->AddName(NameKind::kScope, 5, "Net.\xF0\x9F\x98\x80");
  seed.area->AddName(NameKind::kMark, 1, "");
  seed.area->AddName(NameKind::kSite, 2, "a.py:3 f");
  seed.area->AddName(NameKind::kCall, 9, "2 2 b.py:4 g");
  seed.area->AddName(NameKind::kPool, 1, "0 0 0 0");
  seed.area->AddName(NameKind::kThread, 70, "python");
}

std::vector<std::pair<std::string, std::string>> Seeds() {
  std::vector<std::pair<std::string, std::string>> seeds;
  const auto add = [&seeds](const Seed& seed) {
    seeds.emplace_back(seed.name, seed.bytes());
  };
  add(Begin("empty"));
  const Seed named = Begin("named");
  AddNames(named);
  WriteEveryKind(RingOf(named, 0));
  WriteEveryKind(RingOf(named, 1));
  add(named);
  const Seed redacted = Begin("redacted");  // events whose names are not there
  WriteEveryKind(RingOf(redacted, 0));
  add(redacted);
  const Seed overwritten = Begin("overwritten");
  for (int i = 0; i < 5; ++i) WriteEveryKind(RingOf(overwritten, 2));
  overwritten.area->head().events_lost = 9;
  overwritten.area->head().redacted = 1;
  add(overwritten);
  const Seed full = Begin("full");
  for (std::uint32_t i = 1; i < 60; ++i) {
    full.area->AddName(NameKind::kScope, i, std::string(i, 'n'));
  }
  add(full);
  // Killed in the middle of an event and of a name.
  std::string torn = named.bytes();
  const EventRing ring = named.area->ring(1);
  const auto* const begin = reinterpret_cast<const char*>(&named.area->head());
  const auto place = static_cast<std::size_t>(
      reinterpret_cast<const char*>(&ring.head()) - begin);
  std::memset(&torn[place + sizeof(EventRing::Head) + 3 * sizeof(Event)], 0,
              sizeof(Event));
  torn[named.area->head().names_offset + sizeof(EventName) + 1] ^= 1;
  seeds.emplace_back("torn", torn);
  return seeds;
}

std::uint64_t Edge(Random& random, std::uint64_t size) {
  const std::uint64_t edges[] = {0,
                                 1,
                                 ~std::uint64_t{0},
                                 std::uint64_t{1} << (random() % 64),
                                 (std::uint64_t{1} << (random() % 64)) - 1,
                                 size,
                                 size - 8,
                                 random()};
  return edges[random() % std::size(edges)];
}

// A name that is whole, of any kind, with any bytes in it, before the others.
void PutAnyName(Random& random, std::string& bytes) {
  EventAreaHead head;
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof(head));
  std::string text(random() % 64, '\0');
  // Any bytes, or nearly what a call is.
  constexpr std::string_view kOfCalls = "0123456789   :af-";
  const bool call = random() % 2 != 0;
  for (char& one : text) {
    one = call ? kOfCalls[random() % kOfCalls.size()]
               : static_cast<char>(random());
  }
  EventName name{};
  name.kind = static_cast<NameKind>(random() % 8);
  name.id = static_cast<std::uint32_t>(Edge(random, bytes.size()));
  name.bytes = static_cast<std::uint32_t>(text.size());
  name.check = EventName::CheckOf(name.kind, name.id, text);
  std::memcpy(&bytes[head.names_offset], &name, sizeof(name));
  std::memcpy(&bytes[head.names_offset + sizeof(name)], text.data(),
              text.size());
  head.names_used = std::max<std::uint64_t>(
      head.names_used, sizeof(name) + RoundUp(text.size(), 8));
  std::memcpy(bytes.data(), static_cast<void*>(&head), sizeof(head));
}

void Damage(Random& random, std::string& bytes) {
  if (random() % 4 == 0) PutAnyName(random, bytes);
  for (std::uint64_t turns = random() % 5; turns > 0; --turns) {
    // Most of what may go wrong is in the head; then in the rings.
    const std::size_t most =
        random() % 2 != 0 ? sizeof(EventAreaHead) : bytes.size();
    const std::size_t at = random() % most;
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<char>(1 << (random() % 8));
        break;
      default: {
        const std::uint64_t edge = Edge(random, bytes.size());
        std::memcpy(&bytes[at & ~std::size_t{7}], &edge, sizeof(edge));
      }
    }
  }
  if (random() % 16 == 0) bytes.resize(random() % bytes.size());
}

// Whether it was read; what was read is in the file.
bool Reads(const std::string& bytes, std::vector<std::uint64_t>& aligned) {
  aligned.assign(bytes.size() / 8 + 1, 0);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto content = ReadArea(reinterpret_cast<const char*>(aligned.data()),
                                bytes.size(), "fuzzed");
  if (!content) {
    EXPECT_GT(content.error().message.size(), 20u);
    return false;
  }
  std::size_t events = 0, text = 0;
  for (const RingEvents& ring : content->rings) events += ring.events.size();
  for (const NameRow& name : content->names) text += name.text.size();
  EXPECT_LE(events * sizeof(Event) + text, bytes.size());
  const Collected collected = Collect(content->rings, content->clock);
  EXPECT_LE(collected.events.size() + collected.unknown, events);
  return true;
}

// What is recovered is a recording, whose head is JSON of UTF-8 whatever the
// names were.
void Recovers(const std::string& bytes, bool whole, bool redact) {
  const std::string from = Path("fuzzed"), to = Path("recovered");
  std::remove(to.c_str());
  Put(from, bytes);
  const Status done = Recorder::Recover(from, to, redact);
  ASSERT_EQ(static_cast<bool>(done), whole);
  if (!done) return;
  const std::string made = Whole(to);
  ASSERT_EQ(made.substr(0, 8), "STRATREC");
  std::uint64_t length = 0;
  std::memcpy(&length, &made[24], sizeof(length));
  const auto head = nlohmann::json::parse(made.substr(32, length));
  ASSERT_TRUE(head.at("scopes").is_array());
  ASSERT_TRUE(!redact || head.at("scopes").empty());
}

TEST(AreaFuzz, EverySeedIsReadAsItIs) {
  std::vector<std::uint64_t> aligned;
  for (const auto& [name, bytes] : Seeds()) {
    EXPECT_TRUE(Reads(bytes, aligned)) << name;
    Recovers(bytes, true, false);
  }
}

TEST(AreaFuzz, NothingInTheFileIsBelieved) {
  const char* const wanted = std::getenv("STRATALLOC_FUZZ_INPUTS");
  const int inputs = wanted != nullptr ? std::atoi(wanted) : 3000;
  const auto seeds = Seeds();
  std::vector<std::uint64_t> aligned;
  std::vector<int> read(seeds.size());
  std::size_t before = 0;
  for (int i = 0; i < inputs; ++i) {
    const std::size_t which = static_cast<std::size_t>(i) % seeds.size();
    Random random(static_cast<std::uint64_t>(i) + 7);
    std::string bytes = seeds[which].second;
    Damage(random, bytes);
    const bool whole = Reads(bytes, aligned);
    read[which] += whole;
    if (random() % 8 == 0) Recovers(bytes, whole, random() % 2 != 0);
    if (HasFailure()) {
      Put("/tmp/fuzzed-area", bytes);
      FAIL() << "input " << i << " of " << seeds[which].first
             << ", kept as /tmp/fuzzed-area";
    }
    if (i == inputs / 2) before = mallinfo2().uordblks;
  }
  // What the first half did not keep, the second does not either.
  EXPECT_LE(mallinfo2().uordblks, before + (std::size_t{1} << 20));
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    EXPECT_GT(read[i], inputs / 60) << seeds[i].first << ": nearly all refused";
  }
}

}  // namespace
}  // namespace stratalloc
