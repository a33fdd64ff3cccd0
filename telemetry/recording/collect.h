// SPDX-License-Identifier: Apache-2.0
// The events of many rings as one line: what a live process and what is left of
// a killed one become a recording by.
//
// Order: events of a device's memory as its lock had them; the rest by time, in
// which two cores' clocks may differ by less than a cache miss takes. Time
// never runs backwards in the result.
//
// Pure: no lock, no clock. Failure: none; events of kinds that nobody knows,
// or of impossible devices (a torn file), are left out and counted.
#ifndef STRATALLOC_TELEMETRY_RECORDING_COLLECT_H_
#define STRATALLOC_TELEMETRY_RECORDING_COLLECT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/events/event.h"
#include "telemetry/recording/file_event.h"
#include "telemetry/recording/frame_ends.h"

namespace stratalloc {

struct RingEvents {
  std::uint64_t thread = 0;  // who wrote last
  std::vector<Event> events;
  // In ticks: from then on none of its events is missing.
  std::uint64_t complete_from = 0;

  // Of a ring that was just read: so many of its events are lost, none from
  // that place on (EventRing::Read).
  void NoteLost(std::uint64_t lost, std::size_t whole_from) {
    if (lost == 0) return;
    complete_from = whole_from < events.size() ? events[whole_from].ticks
                                               : ~std::uint64_t{0};
  }
};

struct EventClock {
  std::uint64_t ticks = 0;  // when time is 0
  double ns_per_tick = 1;

  std::int64_t TimeOf(std::uint64_t at) const {
    return static_cast<std::int64_t>(
        static_cast<double>(static_cast<std::int64_t>(at - ticks)) *
        ns_per_tick);
  }
};

struct Collected {
  std::vector<FileEvent> events;
  std::vector<std::uint64_t>
      threads;                // the kernel's numbers; FileEvent::thread
  std::uint64_t unknown = 0;  // events left out
  // Time from which on no ring misses events; kNeverComplete if one has none.
  std::int64_t complete_from = 0;
};
inline constexpr std::int64_t kNeverComplete =
    (std::int64_t{1} << 62) - 1;  // readers take no larger number

// `start`: blocks that were temporary then, of all devices.
Collected Collect(const std::vector<RingEvents>& rings, const EventClock& clock,
                  const std::vector<TemporaryBlock>& start = {});

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_COLLECT_H_
