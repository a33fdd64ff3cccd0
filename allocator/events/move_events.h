// SPDX-License-Identifier: Apache-2.0
// What the event rings hear of tiering: which handle left, came, or was dropped
// below the device, and how long that took with the batch it was in; which
// scope waited. The bytes of a tier are those that moved to it less those that
// moved from it or were dropped there.
//
// Any thread. Moves and drops of one handle are told where its state changes,
// under the lock that it changes under: else a drop could come before the move
// that it ends. Nothing here fails; nothing is done while no events are
// recorded.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_MOVE_EVENTS_H_
#define STRATALLOC_ALLOCATOR_EVENTS_MOVE_EVENTS_H_

#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {

// From its making on.
class MoveEvents {
 public:
  explicit MoveEvents(DeviceIndex device)
      : device_(device), began_(EventRecorder::on() ? NowTicks() : 0) {}

  void Moved(Address handle, Bytes bytes, TierId from, TierId to) const {
    Event event = Begin(EventKind::kMove, bytes);
    event.address = handle;
    event.category = static_cast<std::uint8_t>(Raw(from) * kTiers + Raw(to));
    End(event);
  }
  // Bytes that were on `tier` are no more: what they belonged to was freed.
  static void Dropped(DeviceIndex device, Address handle, Bytes bytes,
                      TierId tier) {
    if (!EventRecorder::on()) return;
    Event event;
    event.kind = EventKind::kDropped;
    event.address = handle;
    event.bytes = bytes;
    event.category = static_cast<std::uint8_t>(Raw(tier));
    event.device = static_cast<std::uint8_t>(device);
    EventRecorder::Record(event);
  }
  void Stalled(ScopeId scope, Bytes bytes) const {
    Event event = Begin(EventKind::kStall, bytes);
    event.scope = Raw(scope);
    End(event);
  }
  // A stream waits for what is still on its way. Of an operator's operands some
  // may come from the host and some from disk: that is told by their moves.
  void Late(ScopeId scope, Bytes bytes) const {
    Event event = Begin(EventKind::kLate, bytes);
    event.scope = Raw(scope);
    End(event);
  }

 private:
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
  const std::uint64_t began_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_MOVE_EVENTS_H_
