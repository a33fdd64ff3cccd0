// SPDX-License-Identifier: Apache-2.0
// C API: recordings of events.
#include <pthread.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accounting/scope_table.h"
#include "accounting/site_table.h"
#include "accounting/stack_table.h"
#include "allocator/events/event_recorder.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"
#include "telemetry/recording/recorder.h"

namespace stratalloc {
namespace {

using Json = nlohmann::json;

Json BlockRow(const BlockView& block) {
  return {block.address,           block.bytes,
          block.requested,         static_cast<int>(block.state),
          Raw(block.charge.scope), Raw(block.charge.category)};
}

// Blocks that are temporary until their frame ends.
void AddTemporaries(const SegmentView& segment, Json& temporaries) {
  for (const BlockView& block : segment.blocks) {
    if (block.open_frame == 0) continue;
    temporaries.push_back({block.address, block.bytes, block.requested,
                           Raw(block.charge.scope), block.open_frame});
  }
}

Json SegmentJson(const SegmentView& segment) {
  Json blocks = Json::array();
  for (const BlockView& block : segment.blocks) {
    blocks.push_back(BlockRow(block));
  }
  return {{"address", segment.address},
          {"size", segment.bytes},
          {"stream", StreamValue(segment.stream)},
          {"owner", {segment.owner.graph, segment.owner.user}},
          {"expandable", !segment.unmanaged},
          {"small", segment.kind == PoolKind::kSmall},
          {"blocks", std::move(blocks)}};
}

Json StatJson(const Stat& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}

Json StateOf(DeviceAllocator& device) {
  const DeviceAllocator::Moment now = device.Now();
  Json segments = Json::array(), temporaries = Json::array();
  for (const SegmentView& segment : now.segments) {
    segments.push_back(SegmentJson(segment));
    AddTemporaries(segment, temporaries);
  }
  const DeviceStats& stats = now.stats;
  // Where what is how large a handle: what can be given back at once.
  Json regions = Json::array();
  for (const bool evictable : {true, false}) {
    for (const PoolKind kind : {PoolKind::kSmall, PoolKind::kLarge}) {
      const HandleRegion& region = device.table().region(evictable, kind);
      if (region.bytes == 0) continue;  // no virtual memory management
      regions.push_back({region.base, region.bytes, region.handle_bytes});
    }
  }
  return {{"index", static_cast<int>(device.device().index())},
          {"capacity", device.capacity()},
          {"regions", std::move(regions)},
          {"order", now.order},
          {"segments", std::move(segments)},
          {"temporaries", std::move(temporaries)},
          {"stats",
           {{"allocated_bytes", StatJson(stats.allocated_bytes.stats[0])},
            {"requested_bytes", StatJson(stats.requested_bytes.stats[0])},
            {"active_bytes", StatJson(stats.active_bytes.stats[0])},
            {"reserved_bytes", StatJson(stats.reserved_bytes.stats[0])},
            {"allocation", StatJson(stats.allocation.stats[0])},
            {"num_ooms", stats.num_ooms},
            {"num_alloc_retries", stats.num_alloc_retries}}}};
}

// Each device hears first that events are recorded: what it then tells of
// itself is where its events begin.
std::vector<Json> States() {
  Allocator::Get().NoteTracker();
  std::vector<Json> states;
  if (!Core::Get().initialized()) return states;
  for (int i = 0; i < Allocator::Get().device_count(); ++i) {
    const Result<DeviceAllocator*> opened = Core::Get().Opened(i);
    if (opened && *opened != nullptr) states.push_back(StateOf(**opened));
  }
  return states;
}

// The recording that a level keeps open.
struct Flight {
  Mutex mutex{LockRank::kSwitches};
  std::atomic<std::uint64_t> recording{0};
};
std::atomic<Flight*>& PlaceOfFlight() {
  static std::atomic<Flight*> place{new Flight};
  return place;
}
Flight& TheFlight() { return *PlaceOfFlight().load(std::memory_order_acquire); }

// A child of a fork begins anew. Whose parent used CUDA may not
// (Core::NotInAFork).
void BeginAnewInForks() {
  static const int once = pthread_atfork(nullptr, nullptr, [] {
    Recorder::AbandonAfterFork();
    PlaceOfFlight().store(new Flight, std::memory_order_release);
  });
  static_cast<void>(once);
}

// Names from before there was an area.
void NameAll() {
  for (int i = 0; i < ScopeCount(); ++i) {
    const auto scope = static_cast<ScopeId>(static_cast<std::uint32_t>(i));
    EventRecorder::Name(NameKind::kScope, Raw(scope), ScopeName(scope));
  }
  const std::uint32_t sites = Raw(kNoPythonFrame) + 1 + CountSites().distinct;
  for (std::uint32_t i = 0; i < sites; ++i) {
    EventRecorder::Name(NameKind::kSite, i, SiteName(SiteId{i}));
  }
  NameCalls();
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_recording_begin(const char* area_file, int redacted,
                               uint64_t ring_events, uint64_t* recording,
                               stratalloc_error* error) {
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  std::optional<EventAreaOptions> area;
  if (area_file != nullptr || ring_events != 0) area.emplace();
  if (area_file != nullptr) {
    area->file = area_file;
    area->redacted = redacted != 0;
  }
  if (ring_events != 0) area->ring_capacity = ring_events;
  BeginAnewInForks();
  const bool first = EventRecorder::area() == nullptr;
  const Result<std::uint64_t> begun = Recorder::Get().Begin(area, States);
  if (!begun) return ToC(begun.error(), error);
  if (first) NameAll();
  *recording = *begun;
  return 0;
}

int stratalloc_set_telemetry(const char* level, stratalloc_error* error) {
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  const Result<TelemetryLevel> wanted = ReadTelemetryLevel(level);
  if (!wanted) return ToC(wanted.error(), error);
  Flight& flight = TheFlight();
  MutexLock lock(flight.mutex);
  if (RecordsEvents(*wanted) && flight.recording.load() == 0) {
    std::uint64_t recording = 0;
    if (const int code =
            stratalloc_recording_begin(nullptr, 0, 0, &recording, error)) {
      return code;
    }
    flight.recording.store(recording);
  } else if (!RecordsEvents(*wanted) && flight.recording.load() != 0) {
    Recorder::Get().Forget(flight.recording.exchange(0));
    Allocator::Get().NoteTracker();
  }
  Core::Get().SetTelemetry(*wanted);
  return 0;
}

uint64_t stratalloc_flight_recording(void) {
  return TheFlight().recording.load();
}

int stratalloc_recording_write(uint64_t recording, const char* path,
                               const char* about_json, int redact, int over,
                               stratalloc_error* error) {
  RecordingOptions options;
  options.redact = redact != 0;
  options.about = Json::parse(about_json, nullptr, /*allow_exceptions=*/false);
  // A recording is worth more than what it says of its program.
  if (!options.about.is_object()) options.about = Json::object();
  if (options.about.contains("level") && options.about["level"].is_string()) {
    options.level = options.about["level"];  // no name: redacted it stays
  }
  const Status written =
      Recorder::Get().Write(recording, path, options, States, over != 0);
  // Off, perhaps: the devices' fast path hears of that.
  Allocator::Get().NoteTracker();
  return ToC(written, error);
}

int stratalloc_recording_recover(const char* area_file, const char* path,
                                 int redact, stratalloc_error* error) {
  return ToC(Recorder::Recover(area_file, path, redact != 0), error);
}

void stratalloc_mark(const char* name) {
  if (!EventRecorder::on()) return;
  EventRecorder::Mark(name);
  // Whoever reads the recording can hold its replay against these.
  for (DeviceAllocator* device : Allocator::Get().Opened()) {
    device->RecordTotals();
  }
}

}  // extern "C"
