// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/collect.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "allocator/base/ids.h"

namespace stratalloc {
namespace {

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
  to.flags = static_cast<std::uint8_t>(from.flags & ~kEventInFrame);
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

bool Earlier(const PlacedEvent& a, const PlacedEvent& b) {
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
void PutInOrder(std::vector<PlacedEvent>& of_device) {
  std::sort(of_device.begin(), of_device.end(),
            [](const PlacedEvent& a, const PlacedEvent& b) {
              return a.order < b.order;
            });
  std::int64_t latest = 0;
  for (PlacedEvent& placed : of_device) {
    latest = std::max(latest, placed.event.time);
    placed.event.time = latest;
  }
}

// What one thread wrote into a ring before another thread took it.
struct Stretch {
  std::uint64_t thread = 0;  // the kernel's number
  std::uint64_t ticks = 0;   // of its first event
  std::uint16_t index = 0;   // of the recording's threads
  const Event* begin = nullptr;
  const Event* end = nullptr;
};

// Stretches of all rings, those of a thread in its order.
std::vector<Stretch> StretchesOf(const std::vector<RingEvents>& rings,
                                 Threads& threads) {
  std::vector<Stretch> stretches;
  for (const RingEvents& ring : rings) {
    std::uint64_t thread = FirstWriter(ring);
    const Event* at = ring.events.data();
    const Event* const end = at + ring.events.size();
    while (at != end) {
      if (at->kind == EventKind::kThread) thread = (at++)->address;
      const std::uint16_t index = threads.IndexOf(thread);
      const Event* const next = std::find_if(at, end, [](const Event& event) {
        return event.kind == EventKind::kThread;
      });
      if (at == next) continue;
      stretches.push_back({thread, at->ticks, index, at, next});
      at = next;
    }
  }
  std::stable_sort(stretches.begin(), stretches.end(),
                   [](const Stretch& a, const Stretch& b) {
                     return std::pair(a.thread, a.ticks) <
                            std::pair(b.thread, b.ticks);
                   });
  return stretches;
}

class Sorter {
 public:
  explicit Sorter(const EventClock& clock) : clock_(clock) {}

  void Take(const Stretch& stretch) {
    if (!frames_.has_value() || thread_ != stretch.thread) {
      frames_.emplace(frame_numbers_);
    }
    thread_ = stretch.thread;
    for (const Event* event = stretch.begin; event != stretch.end; ++event) {
      Take(*event, stretch.index);
    }
  }

  // Not to be used afterwards.
  std::vector<PlacedEvent> InOrder(const std::vector<TemporaryBlock>& start) {
    std::stable_sort(others_.begin(), others_.end(), Earlier);
    std::vector<PlacedEvent> all = std::move(others_);
    for (std::size_t i = 0; i < of_devices_.size(); ++i) {
      if (of_devices_[i].empty()) continue;
      PutInOrder(of_devices_[i]);
      std::vector<TemporaryBlock> temporary;
      std::copy_if(start.begin(), start.end(), std::back_inserter(temporary),
                   [i](const TemporaryBlock& one) { return one.device == i; });
      const std::vector<PlacedEvent> relabelled =
          WithFrameEnds(of_devices_[i], temporary);
      const auto middle = static_cast<std::ptrdiff_t>(all.size());
      all.insert(all.end(), relabelled.begin(), relabelled.end());
      std::inplace_merge(all.begin(), all.begin() + middle, all.end(), Earlier);
    }
    return all;
  }

  std::uint64_t unknown() const { return unknown_; }

 private:
  void Take(const Event& event, std::uint16_t thread) {
    if (static_cast<int>(event.kind) >= kEventKinds ||
        event.device >= kMaxDevices) {
      ++unknown_;
      return;
    }
    PlacedEvent placed{Converted(event, clock_, thread), 0, 0};
    frames_->Take(event.kind);
    if (!HasOrder(event.kind)) {
      others_.push_back(placed);
      return;
    }
    placed.order = OrderOf(event.aux);
    if ((event.flags & kEventInFrame) != 0 ||
        event.kind == EventKind::kFrameEnd) {
      placed.frame = frames_->top();
    }
    of_devices_[event.device].push_back(placed);
  }

  const EventClock clock_;
  std::uint64_t unknown_ = 0;
  std::uint64_t thread_ = 0;
  FrameNumber frame_numbers_ = 0;
  std::optional<ThreadFrames> frames_;
  std::array<std::vector<PlacedEvent>, kMaxDevices> of_devices_;
  std::vector<PlacedEvent> others_;
};

}  // namespace

Collected Collect(const std::vector<RingEvents>& rings, const EventClock& clock,
                  const std::vector<TemporaryBlock>& start) {
  Collected collected;
  for (const RingEvents& ring : rings) {
    collected.complete_from =
        std::max(collected.complete_from, CompleteFrom(ring, clock));
  }
  Threads threads(collected.threads);
  Sorter sorter(clock);
  for (const Stretch& stretch : StretchesOf(rings, threads)) {
    sorter.Take(stretch);
  }
  const std::vector<PlacedEvent> all = sorter.InOrder(start);
  collected.unknown = sorter.unknown();
  collected.events.reserve(all.size());
  for (const PlacedEvent& placed : all) {
    collected.events.push_back(placed.event);
  }
  return collected;
}

}  // namespace stratalloc
