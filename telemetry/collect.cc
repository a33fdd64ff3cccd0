// SPDX-License-Identifier: Apache-2.0
#include "telemetry/collect.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "allocator/base/ids.h"

namespace stratalloc {
namespace {

struct Placed {
  FileEvent event;
  std::uint64_t order = 0;  // of the device; 0 where it has none
};

bool HasDuration(EventKind kind) {
  return kind == EventKind::kMove || kind == EventKind::kStall ||
         kind == EventKind::kLate;
}

bool IsBlocks(EventKind kind) {
  return kind <= EventKind::kFreeCompleted || kind == EventKind::kRelabel ||
         kind == EventKind::kFreedAway;
}

class Threads {
 public:
  explicit Threads(std::vector<std::uint64_t>& numbers) : numbers_(numbers) {}
  // 65535 and beyond are one.
  std::uint16_t IndexOf(std::uint64_t number) {
    const auto [found, is_new] = indexes_.emplace(
        number, static_cast<std::uint16_t>(
                    std::min<std::size_t>(numbers_.size(), 0xffff)));
    if (is_new && numbers_.size() <= 0xffff) numbers_.push_back(number);
    return found->second;
  }

 private:
  std::vector<std::uint64_t>& numbers_;
  std::unordered_map<std::uint64_t, std::uint16_t> indexes_;
};

FileEvent Converted(const Event& from, const EventClock& clock,
                    std::uint16_t thread) {
  FileEvent to;
  // A thread that read the clock just before the beginning may have written its
  // event after it.
  to.time = std::max<std::int64_t>(0, clock.TimeOf(from.ticks));
  to.address = from.address;
  to.bytes = from.bytes;
  to.scope = from.scope;
  to.site = from.site;
  to.thread = thread;
  to.kind = static_cast<std::uint8_t>(from.kind);
  to.category = from.category;
  to.device = from.device;
  to.flags = from.flags;
  if (HasOrder(from.kind)) {
    to.pool = PoolOf(from.aux);
    if (IsBlocks(from.kind)) to.aux = SizeOf(from);
  } else if (HasDuration(from.kind)) {
    to.aux = static_cast<std::uint64_t>(static_cast<double>(from.aux) *
                                        clock.ns_per_tick);
  } else {
    to.aux = from.aux;
  }
  return to;
}

bool Earlier(const Placed& a, const Placed& b) {
  return a.event.time < b.event.time;
}

// Who wrote the first of the ring's events: its kThread event may be lost, but
// the next one says who was before.
std::uint64_t FirstWriter(const RingEvents& ring) {
  const auto taken = std::find_if(
      ring.events.begin(), ring.events.end(),
      [](const Event& event) { return event.kind == EventKind::kThread; });
  return taken == ring.events.end() ? ring.thread : taken->bytes;
}

std::int64_t CompleteFrom(const RingEvents& ring, const EventClock& clock) {
  if (ring.complete_from == 0) return 0;  // nothing was lost
  if (ring.complete_from == ~std::uint64_t{0}) return kNeverComplete;
  return clock.TimeOf(ring.complete_from);
}

// By order; an event is no earlier than the one before it.
void PutInOrder(std::vector<Placed>& of_device) {
  std::sort(of_device.begin(), of_device.end(),
            [](const Placed& a, const Placed& b) { return a.order < b.order; });
  std::int64_t latest = 0;
  for (Placed& placed : of_device) {
    latest = std::max(latest, placed.event.time);
    placed.event.time = latest;
  }
}

}  // namespace

Collected Collect(const std::vector<RingEvents>& rings,
                  const EventClock& clock) {
  Collected collected;
  Threads threads(collected.threads);
  std::array<std::vector<Placed>, kMaxDevices> of_devices;
  std::vector<Placed> others;
  for (const RingEvents& ring : rings) {
    std::uint16_t thread = 0;
    bool known = false;
    collected.complete_from =
        std::max(collected.complete_from, CompleteFrom(ring, clock));
    for (const Event& event : ring.events) {
      if (event.kind == EventKind::kThread) {
        thread = threads.IndexOf(event.address);
        known = true;
        continue;
      }
      if (static_cast<int>(event.kind) >= kEventKinds ||
          event.device >= kMaxDevices) {
        ++collected.unknown;
        continue;
      }
      if (!known) {
        thread = threads.IndexOf(FirstWriter(ring));
        known = true;
      }
      Placed placed{Converted(event, clock, thread), 0};
      if (HasOrder(event.kind)) {
        placed.order = OrderOf(event.aux);
        of_devices[event.device].push_back(placed);
      } else {
        others.push_back(placed);
      }
    }
  }
  std::stable_sort(others.begin(), others.end(), Earlier);
  std::vector<Placed> all = std::move(others);
  for (std::vector<Placed>& of_device : of_devices) {
    if (of_device.empty()) continue;
    PutInOrder(of_device);
    const auto middle = static_cast<std::ptrdiff_t>(all.size());
    all.insert(all.end(), of_device.begin(), of_device.end());
    std::inplace_merge(all.begin(), all.begin() + middle, all.end(), Earlier);
  }
  collected.events.reserve(all.size());
  for (const Placed& placed : all) collected.events.push_back(placed.event);
  return collected;
}

}  // namespace stratalloc
