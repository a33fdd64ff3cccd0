// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/residency.h"

#include <algorithm>
#include <optional>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"

namespace stratalloc {

TierId Residency::TierOf(HandleState state) {
  switch (state) {
    case HandleState::kHost:
    case HandleState::kHostAndDisk:
      return TierId::kHost;
    case HandleState::kDisk:
    case HandleState::kPoisoned:
      return TierId::kDisk;
    default:
      return TierId::kDevice;
  }
}

void Residency::MoveStats(HandleRef handle, int sign) {
  std::int64_t allocated = 0, active = 0, requested = 0;
  p_.heap.ForEachLive(handle, [&](const Block& block, Bytes inside) {
    const Bytes before =
        std::max(handle.address(), block.address) - block.address;
    active += static_cast<std::int64_t>(inside);
    if (block.state == BlockState::kAllocated) {
      allocated += static_cast<std::int64_t>(inside);
    }
    if (block.requested > before) {
      requested +=
          static_cast<std::int64_t>(std::min(inside, block.requested - before));
    }
  });
  p_.live.Move(handle.region->kind, sign * allocated, sign * active,
               sign * requested);
}

void Residency::MoveCharges(HandleRef handle, TierId from, TierId to,
                            bool moved) {
  p_.heap.ForEachLive(handle, [&](const Block& block, Bytes inside) {
    if (block.account != nullptr) block.account->Move(inside, from, to, moved);
  });
}

namespace {

bool IsPinned(const HandleEntry& entry) {
  return entry.pins.load() != 0 && !STRATALLOC_PLANTED(kIgnoredPin);
}

// Pins and pools may change at any time.
bool MayLeave(const HandleEntry& entry) {
  return entry.state.load() == HandleState::kResident && entry.live != 0 &&
         !entry.stays.load() && !IsPinned(entry);
}

bool WasUsedSince(const HandleEntry& entry) {
  return !entry.is_claimed() && !STRATALLOC_PLANTED(kUsedSince);
}

}  // namespace

std::optional<Claim> Residency::Choose(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  // What is handed out from here on is noted, whatever the clock says.
  ++epoch_;
  if (!MayLeave(entry)) return std::nullopt;
  entry.Claim();
  // A pin that came in between may have noted its use before.
  if (IsPinned(entry)) return std::nullopt;
  return Claim{handle, ++entry.claim, entry.used_streams.load()};
}

bool Residency::Mark(const Claim& claim) {
  const HandleRef handle = claim.handle;
  HandleEntry& entry = handle.entry();
  ++epoch_;
  if (!MayLeave(entry) || entry.claim != claim.number) return false;
  entry.state.store(HandleState::kLeaving, std::memory_order_seq_cst);
  // The pin first: what an operator noted is there before its pin goes.
  if (IsPinned(entry) || WasUsedSince(entry)) {
    entry.state.store(HandleState::kResident, std::memory_order_seq_cst);
    return false;
  }
  // Nothing may be handed out of a handle that is about to go.
  p_.heap.Refile(handle);
  return true;
}

bool Residency::BeginEvict(Departure* departure, std::uint64_t users) {
  HandleEntry& entry = departure->handle.entry();
  if (IsPinned(entry) || WasUsedSince(entry) ||
      (entry.used_streams.load() & ~users) != 0) {
    return false;
  }
  entry.state.store(HandleState::kCopyingOut, std::memory_order_seq_cst);
  // Taken, not read: a bit that is set from here on (record_stream) was not
  // waited for, and keeps the handle.
  departure->used_streams = entry.used_streams.exchange(0);
  departure->generation = entry.generation;
  departure->clean = entry.has_copy.load() && !entry.dirty.load();
  return true;
}

void Residency::AbortEvict(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  const HandleState state = entry.state.load();
  STRATALLOC_CHECK(
      state == HandleState::kLeaving || state == HandleState::kCopyingOut,
      HandleStateName(state));
  entry.state.store(HandleState::kResident, std::memory_order_seq_cst);
  p_.heap.Refile(handle);
}

void Residency::Stay(Departure* departure) {
  HandleEntry& entry = departure->handle.entry();
  entry.used_streams.fetch_or(departure->used_streams);
  if (!departure->clean) {
    entry.dirty.store(true);
    entry.has_copy.store(false);
  }
  departure->left = Departure::Left::kStayed;
  AbortEvict(departure->handle);
}

void Residency::CommitEvict(std::vector<Departure>* departures,
                            const MoveEvents& events) {
  std::vector<Departure*> leaving;
  std::vector<PhysicalMemory*> memory;
  std::vector<PhysicalMemory**> slots;
  for (Departure& departure : *departures) {
    HandleEntry& entry = departure.handle.entry();
    if (departure.stays || entry.used_streams.load() != 0) {
      Stay(&departure);
      continue;
    }
    leaving.push_back(&departure);
    memory.push_back(entry.physical);
    if (entry.live > 0) slots.push_back(&entry.physical);
  }
  // First: where the driver refuses, nothing has happened.
  const Status unmapped = p_.pages.Unmap(std::move(slots));
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    Departure& departure = *leaving[i];
    HandleEntry& entry = departure.handle.entry();
    if (entry.live > 0 && entry.physical != nullptr) {
      departure.error = unmapped.error();
      Stay(&departure);
      continue;
    }
    const bool lives = Leave(departure.handle, memory[i], departure.to,
                             /*copied=*/!departure.clean, /*moved=*/true);
    entry.dirty.store(false);
    departure.left = lives ? Departure::Left::kAway : Departure::Left::kFreed;
    if (lives) {
      events.Moved(departure.handle.address(), departure.handle.bytes(),
                   TierId::kDevice, TierOf(departure.to));
    }
  }
}

bool Residency::Leave(HandleRef handle, PhysicalMemory* memory, HandleState to,
                      bool copied, bool moved) {
  HandleEntry& entry = handle.entry();
  STRATALLOC_CHECK(entry.state.load() == HandleState::kCopyingOut,
                   HandleStateName(entry.state.load()));
  STRATALLOC_CHECK(IsAway(to), HandleStateName(to));
  Segment& segment = p_.heap.SegmentOf(handle);
  const bool live = entry.live > 0;
  if (live) {
    MoveStats(handle, -1);
    // A clean drop onto a chunk that is there already writes nothing to the
    // disk: it counts as having left, not as disk traffic.
    const TierId tier = TierOf(to);
    const bool dropped_on_disk = !copied && moved && tier == TierId::kDisk;
    MoveCharges(handle, TierId::kDevice, dropped_on_disk ? TierId::kHost : tier,
                moved);
    if (dropped_on_disk) {
      MoveCharges(handle, TierId::kHost, tier, /*moved=*/false);
    }
  }
  p_.traces.LiveOver(handle, /*allocated=*/false, TraceCause::kEvicted);
  p_.traces.Mapped(TraceAction::kSegmentUnmap, {handle}, TraceCause::kEvicted);
  p_.pages.GiveUp(handle, memory, /*used_streams=*/0, /*keeps=*/true);
  p_.stats.reserved_bytes.For(segment.region->kind,
                              [&](Stat& s) { s.Decrease(handle.bytes()); });
  ++p_.stats.num_device_free;
  if (live) {
    entry.state.store(to);
    p_.heap.NoteLeft();
    entry.has_copy.store(true);
    p_.traces.LiveOver(handle, /*allocated=*/true, TraceCause::kEvicted);
  } else {
    p_.heap.NoteUnmapped(segment, 1);
  }
  p_.heap.Refile(handle);
  return live;
}

Status Residency::BeginRestore(std::span<const HandleRef> run,
                               std::span<PhysicalMemory* const> memory) {
  for (HandleRef handle : run) {
    const HandleState from = handle.entry().state.load();
    STRATALLOC_CHECK(MayReturn(from), HandleStateName(from));
  }
  STRATALLOC_RETURN_IF_ERROR(p_.pages.MapTaken(run, memory));
  for (HandleRef handle : run) Arrive(handle);
  return {};
}

void Residency::Arrive(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  MoveCharges(handle, TierOf(entry.state.load()), TierId::kDevice,
              /*moved=*/true);
  p_.traces.LiveOver(handle, /*allocated=*/false, TraceCause::kRestored);
  p_.traces.Mapped(TraceAction::kSegmentMap, {handle}, TraceCause::kRestored);
  // The used streams are kept: record_stream may have added to it while away.
  entry.dirty.store(false);
  entry.state.store(HandleState::kCopyingIn, std::memory_order_seq_cst);
  p_.traces.LiveOver(handle, /*allocated=*/true, TraceCause::kRestored);
  p_.heap.NoteReturned();
  MoveStats(handle, +1);
  p_.stats.reserved_bytes.For(handle.region->kind,
                              [&](Stat& s) { s.Increase(handle.bytes()); });
  ++p_.stats.num_device_alloc;
}

void Residency::AbortRestore(HandleRef handle, HandleState to) {
  HandleEntry& entry = handle.entry();
  STRATALLOC_CHECK(entry.state.load() == HandleState::kCopyingIn,
                   HandleStateName(entry.state.load()));
  entry.state.store(HandleState::kCopyingOut);
  if (Leave(handle, entry.physical,
            to == HandleState::kPoisoned ? HandleState::kDisk : to,
            /*copied=*/false, /*moved=*/false)) {
    entry.state.store(to);
  }
}

void Residency::CommitRestore(std::vector<HandleRef> handles, EventId event) {
  if (event != kNoEvent) {
    arrivals_.push_back(Arrival{++last_arrival_, event, std::move(handles)});
    return;
  }
  MakeResident(handles);
}

Result<bool> Residency::Await(HandleRef handle, StreamId stream) {
  for (const Arrival& arrival : arrivals_) {
    if (std::find(arrival.handles.begin(), arrival.handles.end(), handle) !=
        arrival.handles.end()) {
      if (STRATALLOC_PLANTED(kUnorderedArrival)) return true;
      STRATALLOC_RETURN_IF_ERROR(
          p_.device.StreamWaitEvent(stream, arrival.event));
      return true;
    }
  }
  return false;
}

void Residency::Settle() {
  while (!arrivals_.empty()) {
    const Result<bool> done = p_.device.IsEventDone(arrivals_.front().event);
    if ((!done || !*done) && !STRATALLOC_PLANTED(kEarlyArrival)) return;
    EndFirstArrival();
  }
}

Residency::Newest Residency::NewestArrival() const {
  // One copy stream: the last event covers all.
  if (arrivals_.empty()) return {};
  return {arrivals_.back().event, arrivals_.back().number};
}

void Residency::EndArrivals(std::uint64_t number) {
  while (!arrivals_.empty() && arrivals_.front().number <= number) {
    EndFirstArrival();
  }
}

void Residency::EndFirstArrival() {
  const Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  p_.events.Put(arrival.event, kDefaultStream);
  MakeResident(arrival.handles);
}

void Residency::MakeResident(const std::vector<HandleRef>& handles) {
  for (HandleRef handle : handles) {
    HandleEntry& entry = handle.entry();
    if (entry.state.load() != HandleState::kCopyingIn) continue;
    entry.state.store(HandleState::kResident, std::memory_order_seq_cst);
    p_.heap.Refile(handle);
  }
}

void Residency::Drop(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  changes_.Note(handle.address(), false);
  ++entry.generation;
  if (entry.has_copy.exchange(false)) {
    dropped_.emplace_back(handle, entry.generation);
  }
  const HandleState state = entry.state.load();
  if (!IsAway(state)) return;
  MoveEvents::Dropped(p_.device.index(), p_.moves, handle.address(),
                      handle.bytes(), TierOf(state));
  entry.state.store(HandleState::kUnmapped);
  p_.heap.NoteReturned();
  p_.heap.NoteUnmapped(p_.heap.SegmentOf(handle), 1);
}

void Residency::NoteHostCopyGone(HandleRef handle, bool written, bool on_disk,
                                 const MoveEvents& events) {
  HandleEntry& entry = handle.entry();
  const HandleState state = entry.state.load();
  if (state == HandleState::kHost || state == HandleState::kHostAndDisk) {
    entry.state.store(HandleState::kDisk);
    MoveCharges(handle, TierId::kHost, TierId::kDisk, /*moved=*/written);
    events.Moved(handle.address(), handle.bytes(), TierId::kHost,
                 TierId::kDisk);
  } else if (!on_disk) {
    entry.has_copy.store(false);
    entry.dirty.store(true);
  }
}

bool Residency::NoteChunkGone(HandleRef handle, bool in_host) {
  HandleEntry& entry = handle.entry();
  const HandleState state = entry.state.load();
  if (state == HandleState::kHostAndDisk) {
    entry.state.store(HandleState::kHost);
    return true;
  }
  // kCopyingIn: it has been read.
  if (state != HandleState::kResident && state != HandleState::kCopyingIn) {
    return false;
  }
  if (!in_host) {
    entry.has_copy.store(false);
    entry.dirty.store(true);
  }
  return true;
}

Address Residency::FindAwaySpace(const Pool& pool, HandleRegion& region,
                                 Bytes size) const {
  if (p_.heap.away() == 0 || !pool.evictable()) return 0;
  if (size > region.handle_bytes) return 0;
  const Bytes least = std::max(size, region.handle_bytes / 2);
  const auto& parked = pool.parked_blocks();
  for (auto key = parked.lower_bound({least, 0, nullptr}); key != parked.end();
       ++key) {
    // The end of one handle and the beginning of the next may be one block.
    Address at = key->address;
    const Address end = at + key->size;
    while (at < end) {
      const HandleRef handle{&region, region.IndexOf(at)};
      const Address next = std::min(end, handle.address() + handle.bytes());
      const HandleState state = handle.entry().state.load();
      // A handle that moves has moved when the arbiter is had.
      const bool comes = IsAway(state) || state == HandleState::kLeaving ||
                         state == HandleState::kCopyingOut ||
                         state == HandleState::kCopyingIn;
      if (next - at >= least && comes && state != HandleState::kPoisoned) {
        return at;
      }
      at = next;
    }
  }
  return 0;
}

}  // namespace stratalloc
