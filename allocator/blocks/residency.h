// SPDX-License-Identifier: Apache-2.0
// How handles leave the device and return, step by step; who wants that, and
// where the bytes go meanwhile, is tiering's. The states, and which event moves
// a handle from which to which: handle_table.h, RESIDENCY.md.
//
//   Choose       the handle is as before; a use from here on voids the choice
//   Mark         kResident -> kLeaving, if the choice holds; a later pin wins
//   BeginEvict   kLeaving -> kCopyingOut: its streams are known, and taken
//   CommitEvict  kCopyingOut -> away: unmapped, its memory is free
//   AbortEvict   kLeaving or kCopyingOut -> kResident: nothing has happened
//
//   BeginRestore   away -> kCopyingIn: mapped, not usable yet
//   CommitRestore  its copy is enqueued; Settle makes it kResident once that is
//                  complete
//   AbortRestore   kCopyingIn -> away: unmapped again
//
// At every step mapping, free blocks inside the handle, statistics and charges
// change together, so that whoever holds the lock sees no half of it. What of a
// handle's bytes was freed while they were away is *dropped*: its state falls
// to kUnmapped, and whoever keeps copies is told once (TakeDropped).
//
// Thread-safety: the caller holds the device lock.
// Lifetime: the device's. Fails: as the driver does, and then nothing has
// changed. Invariants: BlockHeap::away() counts the handles that are away; a
// handle in kCopyingIn is in the hands of whoever began its restore, or in
// `arrivals_`.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_RESIDENCY_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_RESIDENCY_H_

#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/blocks/page_changes.h"
#include "allocator/events/move_events.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/block_traces.h"
#include "allocator/heap/live_counters.h"
#include "allocator/memory/page_store.h"
#include "allocator/streams/event_pool.h"

namespace stratalloc {

// A handle that an eviction has chosen. It is used as before, and leaves only
// if nothing has used it since.
struct Claim {
  HandleRef handle;
  std::uint32_t number = 0;   // of this choice
  std::uint64_t streams = 0;  // of the StreamTable: they used it before
};

// A handle on its way out, as the steps above pass it on.
struct Departure {
  enum class Left {
    kStayed,  // on the device, dirty if it had no true copy; or see `error`
    kAway,
    kFreed,  // nothing live was left: its bytes were given up
  };
  HandleRef handle;
  // BeginEvict: a lower copy seemed to hold what the device holds; whoever
  // finds that untrue clears it. The streams that used the handle, taken from
  // it; and which bytes leave.
  bool clean = false;
  std::uint64_t used_streams = 0;
  std::uint32_t generation = 0;
  // Set by the caller before CommitEvict.
  HandleState to = HandleState::kHost;
  bool stays = false;          // it cannot go
  std::uint64_t checksum = 0;  // the caller's own
  // CommitEvict.
  Left left = Left::kStayed;
  std::optional<Error> error{};  // the driver did not unmap it
};

class Residency {
 public:
  struct Parts {
    const Device& device;
    BlockHeap& heap;
    PageStore& pages;
    EventPool& events;
    BlockTraces& traces;
    LiveCounters& live;
    SegmentStats& stats;
    MoveCounts& moves;
  };
  explicit Residency(const Parts& parts) : p_(parts) {}

  // Moves on whenever a handle begins to leave: a block handed out in this
  // epoch lies in resident, dirty, fenced handles.
  std::uint32_t epoch() const { return epoch_; }

  // ---- leaving -------------------------------------------------------------

  // No claim if it may not leave: pinned, not resident, nothing live, or its
  // pool stays. Voids an earlier claim. REQUIRES: bins are empty.
  std::optional<Claim> Choose(HandleRef handle);
  // False if it was used or chosen again since, or may not leave any more.
  // REQUIRES: bins are empty; no capture is under way.
  bool Mark(const Claim& claim);
  // False if a user came since that is not in `users`, or a pin.
  bool BeginEvict(Departure* departure, std::uint64_t users);
  // All of them, adjacent handles in one call of the driver.
  void CommitEvict(std::vector<Departure>* departures,
                   const MoveEvents& events);
  void AbortEvict(HandleRef handle);

  // ---- returning -----------------------------------------------------------

  // A run of adjacent handles, each with its memory: rights cost one call. On
  // failure the memory is still the caller's.
  Status BeginRestore(std::span<const HandleRef> run,
                      std::span<PhysicalMemory* const> memory);
  // `event` (ours from here on) completes after their copies; kNoEvent: they
  // are complete already.
  void CommitRestore(std::vector<HandleRef> handles, EventId event);
  void AbortRestore(HandleRef handle, HandleState to);
  bool some_arrive() const { return !arrivals_.empty(); }
  // Makes `stream` wait for the arrival of `handle`. False if its copy is not
  // enqueued yet: there is no event to wait for, only the arbiter's holder.
  Result<bool> Await(HandleRef handle, StreamId stream);
  // Arrivals whose copies are complete are resident. Asks for events: not while
  // a stream captures.
  void Settle();
  // The newest arrival, and the end of all up to one whose event was waited
  // for. During a capture too.
  struct Newest {
    EventId event = kNoEvent;
    std::uint64_t number = 0;
  };
  Newest NewestArrival() const;
  void EndArrivals(std::uint64_t number);

  // ---- while bytes are away ------------------------------------------------

  // The first block over the handle was handed out.
  void Make(HandleRef handle) {
    if (!handle.stays()) changes_.Note(handle.address(), true);
  }
  // The last live block over the handle was freed.
  void Drop(HandleRef handle);
  PageChanges& changes() { return changes_; }
  // Handles that were dropped while a copy of them was kept, each once.
  std::vector<std::pair<HandleRef, std::uint32_t>> TakeDropped() {
    return std::exchange(dropped_, {});
  }
  // The host copy of a handle, or its chunk on disk, is given up; what that
  // means for a handle that is away, or that has no other copy.
  void NoteHostCopyGone(HandleRef handle, bool written, bool on_disk,
                        const MoveEvents& events);
  // False if the chunk must stay.
  bool NoteChunkGone(HandleRef handle, bool in_host);
  // A handle, by an address in it, that is away or on its way with `size` free
  // bytes side by side of which the pool could hand some out if it were here,
  // half of it at least; 0 if there is none. While such handles come back
  // before others are opened, what is away takes about twice its bytes at most.
  Address FindAwaySpace(const Pool& pool, HandleRegion& region,
                        Bytes size) const;
  static TierId TierOf(HandleState state);

 private:
  struct Arrival {
    std::uint64_t number;
    EventId event;
    std::vector<HandleRef> handles;
  };

  void Stay(Departure* departure);
  // What CommitEvict does with one handle once `memory` is unmapped; true if
  // something of it lives.
  bool Leave(HandleRef handle, PhysicalMemory* memory, HandleState to,
             bool copied, bool moved);
  // What BeginRestore does once a handle is mapped.
  void Arrive(HandleRef handle);
  void EndFirstArrival();
  // kCopyingIn -> kResident.
  void MakeResident(const std::vector<HandleRef>& handles);
  // Statistics of the live bytes in `handle` that left (-1) or returned (+1).
  void MoveStats(HandleRef handle, int sign);
  // Live bytes of `handle` changed tiers; `moved`: they travelled.
  void MoveCharges(HandleRef handle, TierId from, TierId to, bool moved);

  const Parts p_;
  std::uint32_t epoch_ = 0;
  std::deque<Arrival> arrivals_;
  std::uint64_t last_arrival_ = 0;
  std::vector<std::pair<HandleRef, std::uint32_t>> dropped_;
  PageChanges changes_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_RESIDENCY_H_
