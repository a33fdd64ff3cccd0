// SPDX-License-Identifier: Apache-2.0
// What is heard of tiering: which handle left, came, or was dropped below the
// device, and how long that took with the batch it was in; which scope waited.
// The bytes of a tier are those that moved to it less those that moved from it
// or were dropped there. The device's counts (move_counts.h) hear all of it,
// the event rings what happens while events are recorded.
//
// Any thread. Moves and drops of one handle are told where its state changes,
// under the lock that it changes under: else a drop could come before the move
// that it ends. Nothing here fails.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_MOVE_EVENTS_H_
#define STRATALLOC_ALLOCATOR_EVENTS_MOVE_EVENTS_H_

#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/events/event_recorder.h"
#include "allocator/events/move_counts.h"

namespace stratalloc {

// From its making on.
class MoveEvents {
 public:
  // `counts`: the device's; they outlive this.
  MoveEvents(DeviceIndex device, MoveCounts& counts)
      : device_(device),
        counts_(counts),
        began_ns_(NowNs()),
        began_(EventRecorder::on() ? NowTicks() : 0) {}

  void Moved(Address handle, Bytes bytes, TierId from, TierId to) const {
    counts_.Moved(bytes, from, to, began_ns_, NowNs());
    Event event = Begin(EventKind::kMove, bytes);
    event.address = handle;
    event.category = static_cast<std::uint8_t>(Raw(from) * kTiers + Raw(to));
    End(event);
  }
  // Bytes that were on `tier` are no more: what they belonged to was freed.
  static void Dropped(DeviceIndex device, MoveCounts& counts, Address handle,
                      Bytes bytes, TierId tier) {
    counts.Dropped(bytes, tier);
    if (!EventRecorder::on()) return;
    Event event;
    event.kind = EventKind::kDropped;
    event.address = handle;
    event.bytes = bytes;
    event.category = static_cast<std::uint8_t>(Raw(tier));
    event.device = static_cast<std::uint8_t>(device);
    EventRecorder::Record(event);
  }
  // Returns for how long, ns: since this was made.
  std::uint64_t Stalled(ScopeId scope, Bytes bytes) const {
    const std::uint64_t ns = Ns();
    counts_.Stalled(ns);
    Event event = Begin(EventKind::kStall, bytes);
    event.scope = Raw(scope);
    End(event);
    return ns;
  }
  // A stream waits for what is still on its way. Of an operator's operands some
  // may come from the host and some from disk: that is told by their moves.
  void Late(ScopeId scope, Bytes bytes) const {
    counts_.Late();
    Event event = Begin(EventKind::kLate, bytes);
    event.scope = Raw(scope);
    End(event);
  }

 private:
  std::uint64_t Ns() const {
    return static_cast<std::uint64_t>(NowNs() - began_ns_);
  }
  Event Begin(EventKind kind, Bytes bytes) const {
    Event event;
    event.kind = kind;
    event.bytes = bytes;
    event.device = static_cast<std::uint8_t>(device_);
    return event;
  }
  void End(Event& event) const {
    if (!EventRecorder::on()) return;
    // Switched on in between: it took no time that is known.
    if (began_ != 0) event.aux = NowTicks() - began_;
    EventRecorder::Record(event);
  }

  const DeviceIndex device_;
  MoveCounts& counts_;
  const std::int64_t began_ns_;
  const std::uint64_t began_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_MOVE_EVENTS_H_
