// SPDX-License-Identifier: Apache-2.0
#include "allocator/requests/transactions.h"

#include <algorithm>
#include <set>
#include <utility>

#include "allocator/state/frame_accounts.h"

namespace stratalloc {

std::vector<EvictableHandle> Transactions::Evictable() {
  MutexLock lock(p_.mutex);
  return EvictableLocked();
}

std::vector<EvictableHandle> Transactions::Candidates(
    const std::vector<Address>& library) {
  MutexLock lock(p_.mutex);
  p_.arrivals.Settle();
  const std::set<Address> of_library = p_.heap.HandlesUnder(library);
  std::vector<EvictableHandle> all = EvictableLocked();
  std::erase_if(all, [&](const EvictableHandle& one) {
    p_.mutex.AssertHeld();
    return one.state != HandleState::kResident || !one.lives || one.pinned ||
           of_library.contains(one.handle.address()) ||
           p_.blocks.RuleOf(one.handle).nowhere();
  });
  return all;
}

std::vector<EvictableHandle> Transactions::EvictableLocked() {
  p_.blocks.EmptyBins();  // `live` is looked at
  std::size_t mapped = 0;
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (segment->evictable()) mapped += segment->mapped;
  }
  std::vector<EvictableHandle> all;
  all.reserve(mapped);
  for (const auto& [base, segment] : p_.heap.segments()) {
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
                     .intervals = entry.Intervals()});
    });
  }
  return all;
}

std::optional<TierRule> Transactions::SetRule(Address address, TierRule rule) {
  MutexLock lock(p_.mutex);
  Block* const block = p_.heap.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kAllocated ||
      !block->segment->evictable()) {
    return std::nullopt;
  }
  return p_.blocks.SetRule(*block, rule);
}

TierRule Transactions::RuleOf(HandleRef handle) {
  MutexLock lock(p_.mutex);
  return p_.blocks.RuleOf(handle);
}

std::vector<std::pair<Charge, Bytes>> Transactions::LiveOver(HandleRef handle) {
  MutexLock lock(p_.mutex);
  std::vector<std::pair<Charge, Bytes>> live;
  p_.heap.ForEachLive(handle, [&](const Block& block, Bytes inside) {
    live.emplace_back(FrameAccounts::Get().Resolved(block.charge), inside);
  });
  return live;
}

std::vector<HandleRef> Transactions::AwayOf(
    std::span<const HandleRef> handles) {
  MutexLock lock(p_.mutex);
  std::vector<HandleRef> away;
  for (HandleRef handle : handles) {
    if (MayReturn(handle.entry().state.load())) away.push_back(handle);
  }
  return away;
}

// ---- leaving ----------------------------------------------------------------

bool Transactions::BeginFencing() {
  MutexLock lock(p_.mutex);
  if (!p_.captures.MayEvict()) return false;
  ++p_.fencing;
  return true;
}

void Transactions::EndFencing() {
  MutexLock lock(p_.mutex);
  if (--p_.fencing == 0) p_.fenced.NotifyAll();
}

std::vector<Claim> Transactions::ChooseLeaving(
    std::span<const HandleRef> handles) {
  MutexLock lock(p_.mutex);
  p_.blocks.EmptyBins();
  std::vector<Claim> claims;
  for (HandleRef handle : handles) {
    if (const auto claim = p_.residency.Choose(handle)) {
      claims.push_back(*claim);
    }
  }
  return claims;
}

std::vector<Departure> Transactions::MarkLeaving(
    std::span<const Claim> claims) {
  MutexLock lock(p_.mutex);
  std::vector<Departure> marked;
  if (!p_.captures.MayEvict()) return marked;
  p_.blocks.EmptyBins();
  for (const Claim& claim : claims) {
    if (p_.residency.Mark(claim)) marked.push_back({.handle = claim.handle});
  }
  return marked;
}

void Transactions::BeginEvict(std::vector<Departure>* marked,
                              std::uint64_t users,
                              const std::vector<Address>& library,
                              bool may_leave) {
  MutexLock lock(p_.mutex);
  // A capture may have begun meanwhile, and the fence would be in it.
  may_leave = may_leave && p_.captures.MayEvict();
  const std::set<Address> of_library = p_.heap.HandlesUnder(library);
  std::erase_if(*marked, [&](Departure& departure) {
    p_.mutex.AssertHeld();
    const bool goes = may_leave &&
                      !of_library.contains(departure.handle.address()) &&
                      p_.residency.BeginEvict(&departure, users);
    if (!goes) p_.residency.AbortEvict(departure.handle);
    return !goes;
  });
  if (!marked->empty()) ++p_.fencing;
}

void Transactions::CommitEvict(std::vector<Departure>* departures,
                               const MoveEvents& events) {
  MutexLock lock(p_.mutex);
  p_.residency.CommitEvict(departures, events);
}

// ---- returning --------------------------------------------------------------

Result<std::size_t> Transactions::BeginRestore(
    std::span<const HandleRef> handles,
    std::span<PhysicalMemory* const> memory) {
  return waits_.WhenReady([&]() -> Result<std::size_t> {
    MutexLock lock(p_.mutex);
    std::size_t run = 0;
    for (; run < handles.size(); ++run) {
      const HandleRef handle = handles[run];
      const bool adjacent =
          handle.region == handles[0].region &&
          handle.address() == handles[0].address() + run * handle.bytes();
      if (!adjacent || !MayReturn(handle.entry().state.load())) break;
    }
    if (run == 0) return run;
    STRATALLOC_RETURN_IF_ERROR(
        p_.residency.BeginRestore(handles.first(run), memory.first(run)));
    return run;
  });
}

void Transactions::CommitRestore(std::vector<HandleRef> handles,
                                 EventId event) {
  MutexLock lock(p_.mutex);
  p_.residency.CommitRestore(std::move(handles), event);
  p_.arrivals.Publish();
}

void Transactions::AbortRestore(HandleRef handle, HandleState to) {
  MutexLock lock(p_.mutex);
  p_.residency.AbortRestore(handle, to);
}

Result<bool> Transactions::Await(
    StreamId stream, std::span<const GuardedHandle> handles,
    const std::function<void(const GuardedHandle&)>& use) {
  // A capture cannot wait for an event from outside.
  const bool capturing = p_.device.IsCapturing(stream);
  MutexLock lock(p_.mutex);
  p_.arrivals.Settle();
  bool complete = true;
  for (const GuardedHandle& guarded : handles) {
    const HandleRef handle = guarded.handle;
    if (p_.table.RegionOf(handle.address()) == nullptr) continue;
    const HandleState s = handle.entry().state.load();
    // kLeaving and kCopyingOut are the arbiter's holder's to decide, when it
    // sees the caller's pin.
    bool is_here = s == HandleState::kResident || s == HandleState::kUnmapped ||
                   s == HandleState::kReleasing;
    if (s == HandleState::kCopyingIn && !capturing) {
      STRATALLOC_ASSIGN_OR_RETURN(is_here, p_.residency.Await(handle, stream));
    }
    if (is_here) use(guarded);
    complete = complete && is_here;
  }
  return complete;
}

Status Transactions::DrainArrivals() {
  const Residency::Newest newest = [&] {
    MutexLock lock(p_.mutex);
    return p_.residency.NewestArrival();
  }();
  if (newest.event == kNoEvent) return {};
  STRATALLOC_RETURN_IF_ERROR(p_.device.SynchronizeEvent(newest.event));
  MutexLock lock(p_.mutex);
  p_.residency.EndArrivals(newest.number);
  p_.arrivals.Publish();
  return {};
}

// ---- memory and events for a restore ----------------------------------------

Result<PhysicalMemory*> Transactions::TakeFree(Bytes bytes) {
  MutexLock lock(p_.mutex);
  // The copy stream writes it: its last user must have finished.
  return p_.pages.Take(bytes, p_.limit.Now(), p_.captures.AskStreams());
}

Result<PhysicalMemory*> Transactions::TakePhysical(Bytes bytes) {
  Result<PhysicalMemory*> memory = TakeFree(bytes);
  if (memory) return memory;
  waits_.ReleaseCached(bytes);
  {
    MutexLock lock(p_.mutex);
    waits_.AwaitReleases();
  }
  return TakeFree(bytes);
}

void Transactions::PutPhysical(PhysicalMemory* memory) {
  MutexLock lock(p_.mutex);
  p_.pages.PutTaken(memory);
}

EventId Transactions::TakeEvent() {
  {
    MutexLock lock(p_.mutex);
    if (const EventId event = p_.events.TakeUnused(); event != kNoEvent) {
      return event;
    }
  }
  Result<EventId> event = p_.device.CreateEvent();
  return event ? *event : kNoEvent;
}

void Transactions::PutEvent(EventId event) {
  MutexLock lock(p_.mutex);
  p_.events.Put(event, kDefaultStream);
}

// ---- copies below ----------------------------------------------------------

std::vector<std::pair<HandleRef, std::uint32_t>> Transactions::TakeDropped() {
  MutexLock lock(p_.mutex);
  p_.blocks.EmptyBins();
  return p_.residency.TakeDropped();
}

// PageChanges has a lock of its own, which the analysis cannot see.
bool Transactions::SomePageChanges() const {
  return p_.residency.changes().some();
}

std::vector<PageChange> Transactions::TakePageChanges() {
  return p_.residency.changes().Take();
}

void Transactions::NoteHostCopyGone(HandleRef handle, bool written,
                                    bool on_disk, const MoveEvents& events) {
  MutexLock lock(p_.mutex);
  p_.residency.NoteHostCopyGone(handle, written, on_disk, events);
}

bool Transactions::NoteChunkGone(HandleRef handle, bool in_host) {
  MutexLock lock(p_.mutex);
  return p_.residency.NoteChunkGone(handle, in_host);
}

std::array<Bytes, kTiers> Transactions::TiersOf(Address address, Bytes bytes) {
  std::array<Bytes, kTiers> tiers{};
  HandleRegion* const region = p_.table.RegionOf(address);
  MutexLock lock(p_.mutex);
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
