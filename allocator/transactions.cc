// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what tiering asks of it, each under one hold of the lock.
#include <utility>

#include "allocator/device_allocator.h"

namespace stratalloc {

std::vector<EvictableHandle> DeviceAllocator::Evictable() {
  MutexLock lock(mutex_);
  return EvictableLocked();
}

std::vector<EvictableHandle> DeviceAllocator::Candidates(
    const std::vector<Address>& library) {
  MutexLock lock(mutex_);
  SettleArrivalsLocked();
  const std::set<Address> of_library = HandlesUnderLocked(library);
  std::vector<EvictableHandle> all = EvictableLocked();
  std::erase_if(all, [&](const EvictableHandle& one) {
    return one.state != HandleState::kResident || !one.lives || one.pinned ||
           of_library.contains(one.handle.address());
  });
  return all;
}

std::vector<EvictableHandle> DeviceAllocator::EvictableLocked() {
  blocks_.EmptyBins();  // `live` is looked at
  std::size_t mapped = 0;
  for (const auto& [base, segment] : heap_.segments()) {
    if (segment->evictable()) mapped += segment->mapped;
  }
  std::vector<EvictableHandle> all;
  all.reserve(mapped);
  for (const auto& [base, segment] : heap_.segments()) {
    if (!segment->evictable() || segment->mapped == 0) continue;
    ForEachHandleOf(*segment, [&](HandleRef handle) {
      const HandleEntry& entry = handle.entry();
      const HandleState state = entry.state.load();
      if (state == HandleState::kUnmapped) return;
      all.push_back({.handle = handle,
                     .state = state,
                     .lives = entry.live > 0,
                     .pinned = entry.pins.load() != 0,
                     .clean = entry.has_copy.load() && !entry.dirty.load(),
                     .has_copy = entry.has_copy.load(),
                     .last_use = entry.last_use.load(),
                     .intervals = IntervalsOf(entry)});
    });
  }
  return all;
}

std::vector<std::pair<Charge, Bytes>> DeviceAllocator::LiveOver(
    HandleRef handle) {
  MutexLock lock(mutex_);
  std::vector<std::pair<Charge, Bytes>> live;
  heap_.ForEachLive(handle, [&](const Block& block, Bytes inside) {
    live.emplace_back(block.charge, inside);
  });
  return live;
}

std::vector<HandleRef> DeviceAllocator::AwayOf(
    std::span<const HandleRef> handles) {
  MutexLock lock(mutex_);
  std::vector<HandleRef> away;
  for (HandleRef handle : handles) {
    const HandleState state = handle.entry().state.load();
    if (IsAway(state) && state != HandleState::kPoisoned) {
      away.push_back(handle);
    }
  }
  return away;
}

// ---- leaving ----------------------------------------------------------------

bool DeviceAllocator::BeginFencing() {
  MutexLock lock(mutex_);
  if (!captures_.MayEvict()) return false;
  ++fencing_;
  return true;
}

void DeviceAllocator::EndFencing() {
  MutexLock lock(mutex_);
  if (--fencing_ == 0) fenced_.NotifyAll();
}

std::vector<Departure> DeviceAllocator::MarkLeaving(
    std::span<const HandleRef> handles) {
  MutexLock lock(mutex_);
  std::vector<Departure> marked;
  for (HandleRef handle : handles) {
    if (!captures_.MayEvict()) break;
    blocks_.EmptyBins();
    if (residency_.Mark(handle)) marked.push_back({.handle = handle});
  }
  return marked;
}

void DeviceAllocator::BeginEvict(std::vector<Departure>* marked,
                                 std::uint64_t users,
                                 const std::vector<Address>& library,
                                 bool may_leave) {
  MutexLock lock(mutex_);
  // A capture may have begun meanwhile, and the fence would be in it.
  may_leave = may_leave && captures_.MayEvict();
  const std::set<Address> of_library = HandlesUnderLocked(library);
  std::erase_if(*marked, [&](Departure& departure) {
    mutex_.AssertHeld();
    const bool goes = may_leave &&
                      !of_library.contains(departure.handle.address()) &&
                      residency_.BeginEvict(&departure, users);
    if (!goes) residency_.AbortEvict(departure.handle);
    return !goes;
  });
  if (!marked->empty()) ++fencing_;
}

void DeviceAllocator::CommitEvict(std::vector<Departure>* departures) {
  MutexLock lock(mutex_);
  residency_.CommitEvict(departures);
}

// ---- returning --------------------------------------------------------------

Result<std::size_t> DeviceAllocator::BeginRestore(
    std::span<const HandleRef> handles,
    std::span<PhysicalMemory* const> memory) {
  return WhenReady([&]() -> Result<std::size_t> {
    MutexLock lock(mutex_);
    std::size_t run = 0;
    for (; run < handles.size(); ++run) {
      const HandleRef handle = handles[run];
      const bool adjacent =
          handle.region == handles[0].region &&
          handle.address() == handles[0].address() + run * handle.bytes();
      if (!adjacent || !IsAway(handle.entry().state.load())) break;
    }
    if (run == 0) return run;
    STRATALLOC_RETURN_IF_ERROR(
        residency_.BeginRestore(handles.first(run), memory.first(run)));
    return run;
  });
}

void DeviceAllocator::CommitRestore(std::vector<HandleRef> handles,
                                    EventId event) {
  MutexLock lock(mutex_);
  residency_.CommitRestore(std::move(handles), event);
  slow_.Set(SlowReason::kArrivals, residency_.some_arrive());
}

void DeviceAllocator::AbortRestore(HandleRef handle, HandleState to) {
  MutexLock lock(mutex_);
  residency_.AbortRestore(handle, to);
}

Result<bool> DeviceAllocator::Await(
    StreamId stream, std::span<const GuardedHandle> handles,
    const std::function<void(const GuardedHandle&)>& use) {
  // A capture cannot wait for an event from outside.
  const bool capturing = device_.IsCapturing(stream);
  MutexLock lock(mutex_);
  SettleArrivalsLocked();
  bool complete = true;
  for (const GuardedHandle& guarded : handles) {
    const HandleRef handle = guarded.handle;
    if (!Contains(handle.address())) continue;
    const HandleState s = handle.entry().state.load();
    // kLeaving and kCopyingOut are the arbiter's holder's to decide, when it
    // sees the caller's pin.
    bool is_here = s == HandleState::kResident || s == HandleState::kUnmapped ||
                   s == HandleState::kReleasing;
    if (s == HandleState::kCopyingIn && !capturing) {
      STRATALLOC_ASSIGN_OR_RETURN(is_here, residency_.Await(handle, stream));
    }
    if (is_here) use(guarded);
    complete = complete && is_here;
  }
  return complete;
}

void DeviceAllocator::SettleArrivalsLocked() {
  if (!residency_.some_arrive()) return;
  if (captures_.UnderWay()) return;  // asking for an event would spoil it
  residency_.Settle();
  slow_.Set(SlowReason::kArrivals, residency_.some_arrive());
}

Status DeviceAllocator::DrainArrivals() {
  const Residency::Newest newest = [&] {
    MutexLock lock(mutex_);
    return residency_.NewestArrival();
  }();
  if (newest.event == kNoEvent) return {};
  STRATALLOC_RETURN_IF_ERROR(device_.SynchronizeEvent(newest.event));
  MutexLock lock(mutex_);
  residency_.EndArrivals(newest.number);
  slow_.Set(SlowReason::kArrivals, residency_.some_arrive());
  return {};
}

// ---- memory and events for a restore ----------------------------------------

Result<PhysicalMemory*> DeviceAllocator::TakePhysical(Bytes bytes) {
  const auto take = [&]() REQUIRES(mutex_) {
    // The copy stream writes it: whoever used it last must have finished.
    return pages_.Take(bytes, limit_.Now(), captures_.AskStreams());
  };
  {
    MutexLock lock(mutex_);
    Result<PhysicalMemory*> memory = take();
    if (memory) return memory;
  }
  ReleaseCached(bytes);
  MutexLock lock(mutex_);
  // Memory that another thread is releasing right now is worth waiting for.
  while (releasing_ > 0) released_.Wait(mutex_);
  return take();
}

void DeviceAllocator::PutPhysical(PhysicalMemory* memory) {
  MutexLock lock(mutex_);
  pages_.PutTaken(memory);
}

EventId DeviceAllocator::TakeEvent() {
  {
    MutexLock lock(mutex_);
    if (const EventId event = events_.TakeUnused(); event != kNoEvent) {
      return event;
    }
  }
  Result<EventId> event = device_.CreateEvent();
  return event ? *event : kNoEvent;
}

void DeviceAllocator::PutEvent(EventId event) {
  MutexLock lock(mutex_);
  events_.Put(event, kDefaultStream);
}

// ---- copies below
// -------------------------------------------------------------

std::vector<std::pair<HandleRef, std::uint32_t>>
DeviceAllocator::TakeDropped() {
  MutexLock lock(mutex_);
  blocks_.EmptyBins();
  return residency_.TakeDropped();
}

void DeviceAllocator::NoteHostCopyGone(HandleRef handle, bool written,
                                       bool on_disk) {
  MutexLock lock(mutex_);
  residency_.NoteHostCopyGone(handle, written, on_disk);
}

bool DeviceAllocator::NoteChunkGone(HandleRef handle, bool in_host) {
  MutexLock lock(mutex_);
  return residency_.NoteChunkGone(handle, in_host);
}

// ---- how much
// ----------------------------------------------------------------

Bytes DeviceAllocator::Allocated() {
  MutexLock lock(mutex_);
  return AllocatedLocked();
}

Occupancy DeviceAllocator::Occupied() {
  MutexLock lock(mutex_);
  return {limit_.Now(), AllocatedLocked(), heap_.away() > 0};
}

bool DeviceAllocator::CannotFit(Bytes bytes) {
  MutexLock lock(mutex_);
  return CannotFitLocked(bytes);
}

std::array<Bytes, kTiers> DeviceAllocator::TiersOf(Address address,
                                                   Bytes bytes) {
  std::array<Bytes, kTiers> tiers{};
  HandleRegion* const region = table_.RegionOf(address);
  MutexLock lock(mutex_);
  for (Address at = address; at < address + bytes;) {
    const std::uint64_t index = region->IndexOf(at);
    const Address stop =
        std::min<Address>(address + bytes, region->AddressOf(index + 1));
    const TierId tier = Residency::TierOf(region->entries[index].state.load());
    tiers[static_cast<std::size_t>(tier)] += stop - at;
    at = stop;
  }
  return tiers;
}

}  // namespace stratalloc
