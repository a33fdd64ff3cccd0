// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: the steps by which a handle leaves the device and returns.
// Tiering decides and copies; here the mapping, the free blocks inside the
// handle and the statistics change together, under the device lock.
#include <algorithm>
#include <string>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

TierId DeviceAllocator::TierOfLocked(const HandleEntry& entry) const {
  switch (entry.state.load()) {
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

DeviceAllocator::OnDeviceBytes DeviceAllocator::OnDeviceLocked(
    const Block& block) {
  OnDeviceBytes here{block.size, block.requested};
  if (!block.segment->region->evictable || away_ == 0) return here;
  here = {0, 0};
  Address at = block.address;
  ForEachHandleOf(block, [&](HandleRef handle, Bytes bytes) {
    if (!IsAway(handle.entry().state.load())) {
      here.size += bytes;
      const Bytes before = at - block.address;
      here.requested += block.requested > before
                            ? std::min(bytes, block.requested - before)
                            : 0;
    }
    at += bytes;
  });
  return here;
}

void DeviceAllocator::ForEachEvictableLocked(
    const std::function<void(HandleRef)>& f) {
  EmptyBinsLocked();  // `live` is looked at
  for (auto& [base, segment] : heap_.segments()) {
    HandleRegion& region = *segment->region;
    if (!segment->evictable() || segment->mapped == 0) continue;
    const std::uint64_t end = region.IndexOf(segment->end() - 1) + 1;
    for (std::uint64_t i = region.IndexOf(base); i < end; ++i) {
      if (region.entries[i].state.load() != HandleState::kUnmapped) {
        f(HandleRef{&region, i});
      }
    }
  }
}

void DeviceAllocator::ForEachLiveLocked(
    HandleRef handle, const std::function<void(Charge, Bytes)>& f) {
  const Address lo = handle.address(), hi = lo + handle.bytes();
  for (Block* b = heap_.BlockAt(lo); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    f(b->charge, std::min(hi, b->end()) - std::max(lo, b->address));
  }
}

// Statistics of the live bytes in `handle` that left (-1) or returned (+1).
void DeviceAllocator::MoveStatsLocked(HandleRef handle, int sign) {
  const Address lo = handle.address(), hi = lo + handle.bytes();
  const PoolKind kind = handle.region->kind;
  std::int64_t allocated = 0, active = 0, requested = 0;
  for (Block* b = heap_.BlockAt(lo); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    const Address from = std::max(lo, b->address);
    const Bytes inside = std::min(hi, b->end()) - from;
    const Bytes before = from - b->address;
    active += static_cast<std::int64_t>(inside);
    if (b->state == BlockState::kAllocated) {
      allocated += static_cast<std::int64_t>(inside);
    }
    if (b->requested > before) {
      requested +=
          static_cast<std::int64_t>(std::min(inside, b->requested - before));
    }
  }
  live_.Move(kind, sign * allocated, sign * active, sign * requested);
}

bool DeviceAllocator::BeginLeavingLocked(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  if (!MayEvictLocked()) return false;
  EmptyBinsLocked();
  ++leave_epoch_;
  // It may have changed pools since it was chosen.
  if (entry.state.load() != HandleState::kResident || entry.live == 0 ||
      entry.stays.load() || entry.pins.load() != 0) {
    return false;
  }
  entry.state.store(HandleState::kLeaving, std::memory_order_seq_cst);
  if (entry.pins.load(std::memory_order_seq_cst) != 0) {
    entry.state.store(HandleState::kResident, std::memory_order_seq_cst);
    return false;
  }
  // Nothing may be handed out of a handle that is about to go.
  heap_.Refile(handle);
  return true;
}

void DeviceAllocator::CancelLeavingLocked(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  const HandleState state = entry.state.load();
  STRATALLOC_CHECK(
      state == HandleState::kLeaving || state == HandleState::kCopyingOut,
      HandleStateName(state));
  entry.state.store(HandleState::kResident, std::memory_order_seq_cst);
  heap_.Refile(handle);
}

void DeviceAllocator::FinishLeavingLocked(std::vector<Departure>& departures) {
  std::vector<PhysicalMemory*> memory;
  std::vector<PhysicalMemory**> slots;
  for (const Departure& departure : departures) {
    HandleEntry& entry = departure.handle.entry();
    memory.push_back(entry.physical);
    if (entry.live > 0) slots.push_back(&entry.physical);
  }
  // First: where the driver refuses, nothing has happened.
  const Status unmapped = pages_.Unmap(std::move(slots));
  for (std::size_t i = 0; i < departures.size(); ++i) {
    const HandleEntry& entry = departures[i].handle.entry();
    const bool refused = entry.live > 0 && entry.physical != nullptr;
    departures[i].left =
        refused ? Result<bool>(tl::unexpected(unmapped.error()))
                : LeaveLocked(departures[i].handle, memory[i], departures[i].to,
                              departures[i].traffic);
  }
}

bool DeviceAllocator::LeaveLocked(HandleRef handle, PhysicalMemory* memory,
                                  HandleState to, Traffic traffic) {
  HandleEntry& entry = handle.entry();
  STRATALLOC_CHECK(entry.state.load() == HandleState::kCopyingOut,
                   HandleStateName(entry.state.load()));
  STRATALLOC_CHECK(IsAway(to), HandleStateName(to));
  Segment& segment = heap_.SegmentOf(handle);
  const bool live = entry.live > 0;
  if (live) MoveStatsLocked(handle, -1);
  const TierId tier = to == HandleState::kDisk ? TierId::kDisk : TierId::kHost;
  if (live && observer_ != nullptr) {
    ForEachLiveLocked(handle, [&](Charge charge, Bytes bytes) {
      // A clean drop onto a chunk that is there already writes nothing to the
      // disk: it counts as having left, not as disk traffic.
      const bool dropped_on_disk =
          traffic == Traffic::kDropped && tier == TierId::kDisk;
      observer_->OnMove(device_.index(), charge, TierId::kDevice,
                        dropped_on_disk ? TierId::kHost : tier, bytes,
                        /*moved=*/traffic != Traffic::kNone);
      if (dropped_on_disk) {
        observer_->OnMove(device_.index(), charge, TierId::kHost, tier, bytes,
                          /*moved=*/false);
      }
    });
  }
  RecordLiveOverLocked(handle, /*allocated=*/false, "evicted");
  RecordMappedLocked(TraceAction::kSegmentUnmap, {handle}, "evicted");
  pages_.GiveUp(handle, memory, /*fence=*/0, KeepsMappings(segment));
  stats_.reserved_bytes.For(segment.region->kind,
                            [&](Stat& s) { s.Decrease(handle.bytes()); });
  ++stats_.num_device_free;
  if (live) {
    entry.state.store(to);
    ++away_;
    entry.has_copy.store(true);
    RecordLiveOverLocked(handle, /*allocated=*/true, "evicted");
  } else {
    heap_.NoteUnmapped(segment, 1);
  }
  heap_.Refile(segment, handle.address(), handle.address() + handle.bytes());
  return live;
}

Result<PhysicalMemory*> DeviceAllocator::TakePhysical(Bytes bytes) {
  const auto take = [&]() REQUIRES(mutex_) {
    // The copy stream writes it: whoever used it last must have finished.
    return pages_.Take(bytes, limit_.Now(), AskStreamsLocked());
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

Status DeviceAllocator::BeginArrivalLocked(
    std::span<const HandleRef> run, std::span<PhysicalMemory* const> memory) {
  for (HandleRef handle : run) {
    const HandleState from = handle.entry().state.load();
    STRATALLOC_CHECK(IsAway(from) && from != HandleState::kPoisoned,
                     HandleStateName(from));
  }
  STRATALLOC_RETURN_IF_ERROR(pages_.MapTaken(run, memory));
  for (HandleRef handle : run) ArriveLocked(handle);
  return {};
}

void DeviceAllocator::ArriveLocked(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  if (observer_ != nullptr) {
    const TierId tier = TierOfLocked(entry);
    ForEachLiveLocked(handle, [&](Charge charge, Bytes bytes) {
      observer_->OnMove(device_.index(), charge, tier, TierId::kDevice, bytes,
                        /*moved=*/true);
    });
  }
  RecordLiveOverLocked(handle, /*allocated=*/false, "restored");
  RecordMappedLocked(TraceAction::kSegmentMap, {handle}, "restored");
  // The fence set is kept: record_stream may have added to it while away.
  entry.dirty.store(false);
  entry.state.store(HandleState::kCopyingIn, std::memory_order_seq_cst);
  RecordLiveOverLocked(handle, /*allocated=*/true, "restored");
  --away_;
  MoveStatsLocked(handle, +1);
  stats_.reserved_bytes.For(handle.region->kind,
                            [&](Stat& s) { s.Increase(handle.bytes()); });
  ++stats_.num_device_alloc;
}

void DeviceAllocator::AbortArrivalLocked(HandleRef handle, HandleState to) {
  HandleEntry& entry = handle.entry();
  STRATALLOC_CHECK(entry.state.load() == HandleState::kCopyingIn,
                   HandleStateName(entry.state.load()));
  entry.state.store(HandleState::kCopyingOut);
  const bool live = LeaveLocked(
      handle, entry.physical,
      to == HandleState::kPoisoned ? HandleState::kDisk : to, Traffic::kNone);
  if (live) entry.state.store(to);
}

void DeviceAllocator::FinishArrivalLocked(std::vector<HandleRef> handles,
                                          EventId event) {
  if (event != kNoEvent) {
    arrivals_.push_back(Arrival{++last_arrival_, event, std::move(handles)});
    SetSlowReasonLocked(SlowReason::kArrivals, true);
    return;
  }
  ArriveLocked(handles);
}

Result<bool> DeviceAllocator::AwaitArrivalLocked(HandleRef handle,
                                                 StreamId stream) {
  for (const Arrival& arrival : arrivals_) {
    if (std::find(arrival.handles.begin(), arrival.handles.end(), handle) !=
        arrival.handles.end()) {
      STRATALLOC_RETURN_IF_ERROR(
          device_.StreamWaitEvent(stream, arrival.event));
      return true;
    }
  }
  return false;
}

void DeviceAllocator::SettleArrivalsLocked() {
  if (CapturingLocked()) return;  // asking for an event would spoil it
  while (!arrivals_.empty()) {
    Result<bool> done = device_.IsEventDone(arrivals_.front().event);
    if (!done || !*done) return;
    SettleFirstArrivalLocked();
  }
}

void DeviceAllocator::SettleFirstArrivalLocked() {
  const Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  events_.Put(arrival.event, kDefaultStream);
  ArriveLocked(arrival.handles);
  if (arrivals_.empty()) SetSlowReasonLocked(SlowReason::kArrivals, false);
}

void DeviceAllocator::ArriveLocked(const std::vector<HandleRef>& handles) {
  for (HandleRef handle : handles) {
    HandleEntry& entry = handle.entry();
    if (entry.state.load() != HandleState::kCopyingIn) continue;
    entry.state.store(HandleState::kResident, std::memory_order_seq_cst);
    heap_.Refile(handle);
  }
}

Status DeviceAllocator::DrainArrivals() {
  EventId event = kNoEvent;
  std::uint64_t last = 0;
  {
    MutexLock lock(mutex_);
    if (arrivals_.empty()) return {};
    event = arrivals_.back().event;  // one copy stream: the last covers all
    last = arrivals_.back().number;
  }
  STRATALLOC_RETURN_IF_ERROR(device_.SynchronizeEvent(event));
  MutexLock lock(mutex_);
  while (!arrivals_.empty() && arrivals_.front().number <= last) {
    SettleFirstArrivalLocked();
  }
  return {};
}

Address DeviceAllocator::FindAwaySpaceLocked(const Pool& pool, Bytes size) {
  if (away_ == 0 || !pool.evictable()) return 0;
  HandleRegion& region = table_.region(/*evictable=*/true, pool.key().kind);
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

void DeviceAllocator::NoteMoveLocked(HandleRef handle, TierId from, TierId to,
                                     bool moved) {
  if (observer_ == nullptr) return;
  ForEachLiveLocked(handle, [&](Charge charge, Bytes bytes) {
    observer_->OnMove(device_.index(), charge, from, to, bytes, moved);
  });
}

std::vector<std::pair<HandleRef, std::uint32_t>>
DeviceAllocator::TakeDroppedLocked() {
  EmptyBinsLocked();
  return std::exchange(dropped_, {});
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

}  // namespace stratalloc
