// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "allocator/base/clock.h"
#include "telemetry/recording/area_file.h"
#include "telemetry/recording/collect.h"
#include "telemetry/recording/recording_file.h"

namespace stratalloc {
namespace {

using Json = nlohmann::json;

const char* TableOf(NameKind kind) {
  switch (kind) {
    case NameKind::kScope:
      return "scopes";
    case NameKind::kSite:
    case NameKind::kCall:
      return "sites";
    case NameKind::kPool:
      return "pools";
    case NameKind::kThread:
      return "names_of_threads";
    case NameKind::kMark:
      return "marks";
  }
  return nullptr;  // of a later version, or torn
}

// "caller line text" as a row of sites; what is torn is left out.
void AddCall(const NameRow& name, Json& sites) {
  std::uint64_t caller = 0, line = 0;
  int at = 0;
  if (std::sscanf(name.text.c_str(), "%5" SCNu64 " %5" SCNu64 " %n", &caller,
                  &line, &at) != 2 ||
      at == 0) {
    return;
  }
  sites.push_back(
      {name.id, name.text.substr(static_cast<std::size_t>(at)), caller, line});
}

// Tables of [id, text], of calls [id, text, caller, line]; pools have numbers
// alone, so they stay when redacted.
void AddNames(const std::vector<NameRow>& names, bool redact, Json& head) {
  for (const char* table :
       {"scopes", "sites", "pools", "names_of_threads", "marks"}) {
    head[table] = Json::array();
  }
  for (const NameRow& name : names) {
    const char* const table = TableOf(name.kind);
    if (table == nullptr) continue;
    if (redact && name.kind != NameKind::kPool) continue;
    if (name.kind == NameKind::kCall) {
      AddCall(name, head[table]);
    } else {
      head[table].push_back({name.id, name.text});
    }
  }
}

// What one Record takes, by writing some into a ring that nobody reads.
double NsPerEvent() {
  constexpr std::uint64_t kCapacity = 256;
  constexpr int kEvents = 4096;
  EventRing::Head head{};
  const auto words =
      std::make_unique<EventRing::Word[]>(kCapacity * EventRing::kWords);
  EventRing ring(&head, words.get(), kCapacity);
  const std::int64_t began = NowNs();
  for (int i = 0; i < kEvents; ++i) {
    Event event;
    event.ticks = NowTicks();
    ring.Write(event);
  }
  return static_cast<double>(NowNs() - began) / kEvents;
}

// A name that is no UTF-8 is replaced, not an exception.
std::string Text(const Json& head) {
  return head.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json HeadOf(const AreaContent& content, const Collected& collected,
            bool redact) {
  Json head = {
      {"format", "stratalloc recording"},
      {"started", content.unix_ns},
      {"process", content.process},
      {"threads", collected.threads},
      {"overwritten", content.overwritten},
      {"without_a_ring", content.events_lost},
      {"complete_from",
       content.events_lost > 0 ? kNeverComplete : collected.complete_from},
      {"unknown", collected.unknown},
      {"owners_said", true},
      {"names_lost", content.names_lost},
      {"stacks_lost", content.stacks_lost},
      {"redacted", redact},
      {"overhead_ns",
       static_cast<std::uint64_t>(NsPerEvent() *
                                  static_cast<double>(collected.events.size() +
                                                      content.overwritten))}};
  AddNames(content.names, redact, head);
  return head;
}

// What is temporary in these states, on whose end of a frame it is no more.
std::vector<TemporaryBlock> TemporariesOf(const std::vector<Json>& states) {
  std::vector<TemporaryBlock> found;
  for (const Json& state : states) {
    const std::uint8_t device = state.at("index");
    for (const Json& one : state.value("temporaries", Json::array())) {
      found.push_back(
          {device, one.at(0), one.at(1), one.at(2), one.at(3), one.at(4)});
    }
  }
  return found;
}

// As a recording has them: what became of temporaries its events say.
std::vector<Json> WithoutTemporaries(std::vector<Json> states) {
  for (Json& state : states) state.erase("temporaries");
  return states;
}

// By device the number of its newest event; `none` where no state was taken.
// As long as a device's number in an event can be.
using Orders = std::array<std::uint64_t, 256>;
Orders OrdersOf(const std::vector<Json>& states, std::uint64_t none) {
  Orders orders;
  orders.fill(none);
  for (const Json& state : states) {
    orders[state.at("index").get<std::uint8_t>()] = state.at("order");
  }
  return orders;
}

// Of each device only what came after its first state was taken and before its
// last one.
void KeepBetween(const Orders& start, const Orders& end, RingEvents& ring) {
  std::erase_if(ring.events, [&](const Event& event) {
    if (!HasOrder(event.kind)) return false;
    const std::uint64_t order = OrderOf(event.aux);
    return order <= start[event.device] || order > end[event.device];
  });
}

}  // namespace

std::atomic<Recorder*>& Recorder::Place() {
  static std::atomic<Recorder*> place{new Recorder};
  return place;
}

Recorder& Recorder::Get() { return *Place().load(std::memory_order_acquire); }

void Recorder::AbandonAfterFork() {
  EventRecorder::AbandonAfterFork();
  // A thread that is not in the child may hold the lock of the other one.
  Place().store(new Recorder, std::memory_order_release);
}

Result<std::uint64_t> Recorder::Begin(
    const std::optional<EventAreaOptions>& area, const DeviceStates& states) {
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    STRATALLOC_RETURN_IF_ERROR(EventRecorder::Start(area));
    Open& open = open_.emplace_back();
    open.number = number = ++numbers_;
    open.ticks = NowTicks();
    open.unix_ns = UnixNs();
    open.since = EventRecorder::Now();
    const EventAreaHead& head = EventRecorder::area()->head();
    open.events_lost = head.events_lost.load();
    open.stacks_lost = head.stacks_lost.load();
  }
  auto start = std::make_shared<const std::vector<Json>>(states());
  MutexLock lock(mutex_);
  if (Open* const open = FindLocked(number)) open->start = std::move(start);
  return number;
}

Recorder::Open* Recorder::FindLocked(std::uint64_t recording) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [recording](const Open& one) {
        return one.number == recording && !one.over;
      });
  return found == open_.end() ? nullptr : &*found;
}

Status Recorder::Write(std::uint64_t recording, const std::string& path,
                       const RecordingOptions& options,
                       const DeviceStates& states, bool over) {
  Open open;
  {
    MutexLock lock(mutex_);
    Open* const found = FindLocked(recording);
    if (found == nullptr || found->start == nullptr) {
      return Fail(ErrorCode::kNotFound, "there is no recording " +
                                            std::to_string(recording) +
                                            " under way: it was ended before");
    }
    open = *found;
    found->over = over;
  }
  EventArea& area = *EventRecorder::area();
  area.UpdateClock();
  // The end first: what happens between it and the reading of the rings is
  // beyond it.
  const std::vector<Json> end = states();
  const std::uint64_t ended = NowTicks();
  EventRecorder::Reading reading = EventRecorder::Read(open.since);
  if (over) Forget(recording);  // nothing of the rings is needed any more
  AreaContent content = ReadNames(area.head());
  content.clock.ticks = open.ticks;
  content.unix_ns = open.unix_ns;
  content.events_lost = reading.events_lost - open.events_lost;
  content.stacks_lost -= open.stacks_lost;
  const Orders first = OrdersOf(*open.start, 0);
  const Orders last = OrdersOf(end, ~std::uint64_t{0});
  for (EventRecorder::Reading::Ring& ring : reading.rings) {
    content.overwritten += ring.lost;
    RingEvents& kept = content.rings.emplace_back(
        RingEvents{ring.thread, std::move(ring.events)});
    kept.NoteLost(ring.lost, ring.whole_from);
    KeepBetween(first, last, kept);
  }
  const Collected collected =
      Collect(content.rings, content.clock, TemporariesOf(*open.start));
  Json head = HeadOf(content, collected, options.redact);
  // As events are timed: the calendar may have been set back meanwhile.
  head["duration"] = content.clock.TimeOf(ended);
  head["torn"] = false;
  head["start"] = WithoutTemporaries(*open.start);
  head["end"] = WithoutTemporaries(end);
  head["level"] = options.level;
  if (!options.redact) head["about"] = options.about;
  return WriteRecording(path, Text(head), collected.events);
}

void Recorder::Forget(std::uint64_t recording) {
  MutexLock lock(mutex_);
  std::erase_if(
      open_, [recording](const Open& one) { return one.number == recording; });
  if (open_.empty()) EventRecorder::Stop();
}

Status Recorder::Recover(const std::string& area, const std::string& path,
                         bool redact) {
  STRATALLOC_ASSIGN_OR_RETURN(const AreaContent content, ReadAreaFile(area));
  const Collected collected = Collect(content.rings, content.clock);
  Json head = HeadOf(content, collected, redact || content.redacted);
  head["duration"] =
      collected.events.empty() ? 0 : collected.events.back().time;
  head["torn"] = true;
  return WriteRecording(path, Text(head), collected.events);
}

}  // namespace stratalloc
