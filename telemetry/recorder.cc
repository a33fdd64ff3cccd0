// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recorder.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "allocator/base/clock.h"
#include "telemetry/area_file.h"
#include "telemetry/collect.h"
#include "telemetry/recording_file.h"

namespace stratalloc {
namespace {

using Json = nlohmann::json;

std::int64_t UnixNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

const char* TableOf(NameKind kind) {
  switch (kind) {
    case NameKind::kScope:
      return "scopes";
    case NameKind::kSite:
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

// Tables of [id, text]; pools have numbers alone, so they stay when redacted.
void AddNames(const std::vector<NameRow>& names, bool redact, Json& head) {
  for (const char* table :
       {"scopes", "sites", "pools", "names_of_threads", "marks"}) {
    head[table] = Json::array();
  }
  for (const NameRow& name : names) {
    const char* const table = TableOf(name.kind);
    if (table == nullptr) continue;
    if (redact && name.kind != NameKind::kPool) continue;
    head[table].push_back({name.id, name.text});
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
  Json head = {{"format", "stratalloc recording"},
               {"started", content.unix_ns},
               {"process", content.process},
               {"threads", collected.threads},
               {"overwritten", content.overwritten},
               {"without_a_ring", content.events_lost},
               {"unknown", collected.unknown},
               {"names_lost", content.names_lost},
               {"redacted", redact},
               {"overhead_ns",
                static_cast<std::uint64_t>(
                    NsPerEvent() * static_cast<double>(collected.events.size() +
                                                       content.overwritten))}};
  AddNames(content.names, redact, head);
  return head;
}

std::uint64_t OrderIn(const std::vector<Json>& states, int device) {
  for (const Json& state : states) {
    if (state.at("index") == device) return state.at("order");
  }
  return 0;
}

// Of each device only what came after its state was taken.
void DropWhatStatesHave(const std::vector<Json>& start, RingEvents& ring) {
  std::erase_if(ring.events, [&start](const Event& event) {
    return HasOrder(event.kind) &&
           OrderOf(event.aux) <= OrderIn(start, event.device);
  });
}

}  // namespace

Recorder& Recorder::Get() {
  static Recorder& recorder = *new Recorder;
  return recorder;
}

Result<std::uint64_t> Recorder::Begin(
    const std::optional<EventAreaOptions>& area, const DeviceStates& states) {
  MutexLock lock(mutex_);
  STRATALLOC_RETURN_IF_ERROR(EventRecorder::Start(area));
  Open open;
  open.number = ++numbers_;
  open.since = EventRecorder::Now();
  open.ticks = NowTicks();
  open.unix_ns = UnixNs();
  open.events_lost = EventRecorder::area()->head().events_lost.load();
  open.start = states();
  open_.push_back(std::move(open));
  return numbers_;
}

Status Recorder::Write(std::uint64_t recording, const std::string& path,
                       const RecordingOptions& options,
                       const DeviceStates& states, bool over) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(
      open_.begin(), open_.end(),
      [recording](const Open& one) { return one.number == recording; });
  if (found == open_.end()) {
    return Fail(ErrorCode::kNotFound, "there is no recording " +
                                          std::to_string(recording) +
                                          " under way: it was ended before");
  }
  EventArea& area = *EventRecorder::area();
  area.UpdateClock();
  // The end first: what happens between it and the reading of the rings is
  // beyond it.
  const std::vector<Json> end = states();
  const std::int64_t ended = UnixNs();
  EventRecorder::Reading reading = EventRecorder::Read(found->since);
  AreaContent content = ReadNames(area.head());
  content.clock.ticks = found->ticks;
  content.unix_ns = found->unix_ns;
  content.events_lost = reading.events_lost - found->events_lost;
  for (EventRecorder::Reading::Ring& ring : reading.rings) {
    content.overwritten += ring.lost;
    RingEvents& kept = content.rings.emplace_back(
        RingEvents{ring.thread, std::move(ring.events)});
    DropWhatStatesHave(found->start, kept);
    std::erase_if(kept.events, [&end](const Event& event) {
      const std::uint64_t last = OrderIn(end, event.device);
      return HasOrder(event.kind) && last != 0 && OrderOf(event.aux) > last;
    });
  }
  const Collected collected = Collect(content.rings, content.clock);
  Json head = HeadOf(content, collected, options.redact);
  head["duration"] = ended - found->unix_ns;
  head["torn"] = false;
  head["start"] = found->start;
  head["end"] = end;
  if (!options.redact) head["about"] = options.about;
  if (over) EndLocked(recording);
  return WriteRecording(path, Text(head), collected.events);
}

void Recorder::Forget(std::uint64_t recording) {
  MutexLock lock(mutex_);
  EndLocked(recording);
}

void Recorder::EndLocked(std::uint64_t recording) {
  std::erase_if(
      open_, [recording](const Open& one) { return one.number == recording; });
  if (open_.empty()) EventRecorder::Stop();
}

Status Recorder::Recover(const std::string& area, const std::string& path,
                         bool redact) {
  STRATALLOC_ASSIGN_OR_RETURN(const AreaContent content, ReadAreaFile(area));
  const Collected collected = Collect(content.rings, content.clock);
  Json head = HeadOf(content, collected, redact);
  head["duration"] =
      collected.events.empty() ? 0 : collected.events.back().time;
  head["torn"] = !content.closed;
  return WriteRecording(path, Text(head), collected.events);
}

}  // namespace stratalloc
