// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: free memory moves to where it is wanted, or goes back.
#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "allocator/base/planted.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

std::uint64_t DeviceAllocator::OwnBitLocked(StreamId stream) {
  // What is captured runs later, perhaps on another stream.
  if (CapturingLocked()) return 0;
  const int bit = streams_.BitOf(stream);
  return bit >= StreamTable::kOverflowBit ? 0 : std::uint64_t{1} << bit;
}

StreamsIdle DeviceAllocator::AskStreamsLocked() {
  return [this, capturing = CapturingLocked(), asked = std::uint64_t{0},
          idle = std::uint64_t{0}](std::uint64_t streams) mutable {
    if (capturing) return false;
    streams = streams_.MayAsk(streams);
    if (streams >> StreamTable::kOverflowBit != 0) return false;
    for (std::uint64_t left = streams & ~asked; left != 0; left &= left - 1) {
      const int bit = std::countr_zero(left);
      if (device_.IsIdle(streams_.StreamOf(bit)))
        idle |= std::uint64_t{1} << bit;
    }
    asked |= streams;
    return (streams & ~idle) == 0;
  };
}

std::uint64_t DeviceAllocator::UsersLocked(HandleRef handle) {
  const PoolKey& key = heap_.SegmentOf(handle).pool->key();
  // A graph that was captured into a private pool runs on any stream, and may
  // still run when the pool's last use is over: only the device knows.
  const int bit = key.owner.is_private() ? StreamTable::kOverflowBit
                                         : streams_.BitOf(key.stream);
  return std::uint64_t{1} << bit | handle.entry().fence.load();
}

std::vector<HandleRef> DeviceAllocator::FreeHandlesLocked(
    Bytes wanted, PoolId only,
    const std::function<bool(HandleRef, std::uint64_t)>& accept) {
  std::vector<HandleRef> found;
  Bytes bytes = 0;
  for (auto& [key, pool] : heap_.pools()) {
    if (only.is_private() ? key.owner != only
                          : private_pools_.IsInUse(key.owner)) {
      continue;
    }
    const bool more = pool->free_blocks().ForEach([&](const FreeKey& free) {
      mutex_.AssertHeld();
      HandleRegion& region = *free.block->segment->region;
      const Address lo = region.base + RoundUp(free.address - region.base,
                                               region.handle_bytes);
      const Address hi =
          region.base + RoundDown(free.address + free.size - region.base,
                                  region.handle_bytes);
      for (Address at = lo; at < hi; at += region.handle_bytes) {
        if (bytes >= wanted) return false;
        HandleRef handle{&region, region.IndexOf(at)};
        if (!accept(handle, UsersLocked(handle))) continue;
        found.push_back(handle);
        bytes += region.handle_bytes;
      }
      return true;
    });
    if (!more) break;
  }
  return found;
}

void DeviceAllocator::GiveUpLocked(const std::vector<HandleRef>& handles,
                                   bool fenced) {
  traces_.Mapped(TraceAction::kSegmentUnmap, handles, nullptr);
  for (std::size_t i = 0; i < handles.size();) {
    Segment& segment = heap_.SegmentOf(handles[i]);
    const Address lo = handles[i].address();
    Address hi = lo;
    // A run at a time: refiling looks at every block it touches.
    for (;
         i < handles.size() && handles[i].address() == hi && hi < segment.end();
         ++i) {
      const HandleRef handle = handles[i];
      const bool idle = fenced || STRATALLOC_PLANTED(kEarlyReuse);
      if (segment.plain) {  // TakeEmptyPlainLocked does the rest
        handle.entry().state.store(HandleState::kUnmapped);
      } else {
        pages_.GiveUp(handle, handle.entry().physical,
                      idle ? 0 : UsersLocked(handle), KeepsMappings(segment));
      }
      hi += handle.bytes();
      ++stats_.num_device_free;
    }
    stats_.reserved_bytes.For(segment.region->kind, [&](Stat& s) {
      s.Decrease(static_cast<std::int64_t>(hi - lo));
    });
    heap_.NoteUnmapped(segment, (hi - lo) / segment.region->handle_bytes);
    heap_.Refile(segment, lo, hi);
  }
}

bool DeviceAllocator::MayMoveLocked(HandleRef handle, std::uint64_t own,
                                    const StreamsIdle& idle) {
  const Segment& from = heap_.SegmentOf(handle);
  if (from.plain || private_pools_.IsInUse(from.pool->key().owner))
    return false;
  if (STRATALLOC_PLANTED(kEarlyReuse)) return true;
  std::uint64_t users = UsersLocked(handle);
  // Where the mapping stays, work that is in order needs no waiting.
  if (KeepsMappings(from)) users &= ~own;
  return idle(users);
}

HandleRef DeviceAllocator::FreeElsewhereLocked(const PhysicalMemory* memory,
                                               Address lo, Address hi,
                                               std::uint64_t own,
                                               const StreamsIdle& idle,
                                               const Block** near) {
  const Address at = memory->used_at;
  if (memory->free || at == 0 || (at >= lo && at < hi)) return {};
  const Block* block = near == nullptr ? nullptr : *near;
  if (block == nullptr || at < block->address || at >= block->end()) {
    block = heap_.BlockAt(at);
    if (near != nullptr) *near = block;
  }
  if (block == nullptr || block->state != BlockState::kFree ||
      block->address > at || block->end() < at + memory->bytes) {
    return {};
  }
  HandleRegion& region = *block->segment->region;
  const HandleRef handle{&region, region.IndexOf(at)};
  return MayMoveLocked(handle, own, idle) ? handle : HandleRef{};
}

void DeviceAllocator::MoveCachedLocked(Segment& segment, Address lo, Address hi,
                                       const StreamsIdle& idle) {
  if (CapturingLocked()) return;
  EmptyBinsLocked();
  HandleRegion& region = *segment.region;
  const std::uint64_t own = OwnBitLocked(segment.pool->key().stream);
  // Memory that is mapped here already costs nothing to have back.
  std::vector<HandleRef> moving;
  Bytes missing = 0;
  const Block* near = nullptr;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    const HandleEntry& entry = region.entries[i];
    if (entry.state.load() != HandleState::kUnmapped) continue;
    PhysicalMemory* memory = entry.physical;
    const HandleRef found =
        memory == nullptr
            ? HandleRef{}
            : FreeElsewhereLocked(memory, lo, hi, own, idle, &near);
    if (found.region == nullptr) {
      missing += region.handle_bytes;
    } else {
      memory->used_at = 0;  // found once
      moving.push_back(found);
    }
  }
  missing -= std::min(missing, pages_.free_bytes());
  if (missing > 0) {
    const std::vector<HandleRef> others = FreeHandlesLocked(
        missing, PoolId{}, [&](HandleRef handle, std::uint64_t) {
          mutex_.AssertHeld();
          const Address at = handle.address();
          return (at < lo || at >= hi) &&
                 handle.bytes() == region.handle_bytes &&
                 handle.entry().physical != nullptr &&
                 handle.entry().physical->used_at != 0 &&
                 MayMoveLocked(handle, own, idle);
        });
    moving.insert(moving.end(), others.begin(), others.end());
  }
  std::sort(moving.begin(), moving.end(),
            [](HandleRef a, HandleRef b) { return a.address() < b.address(); });
  GiveUpLocked(moving, /*fenced=*/false);
}

bool DeviceAllocator::WaitForStreams(std::uint64_t fence) {
  bool fenced = true, captures = false;
  const std::uint64_t asked = streams_.MayAsk(fence);
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if ((asked >> bit & 1) == 0) continue;
    const StreamId stream = streams_.StreamOf(bit);
    if (device_.IsCapturing(stream)) {
      captures = true;  // and waiting for its device would spoil it
      fenced = false;
    } else if (!device_.SynchronizeStream(stream)) {
      fenced = false;
    }
  }
  if (!captures && (asked >> StreamTable::kOverflowBit != 0 || !fenced)) {
    fenced = !SomeCapture(~std::uint64_t{0}) &&
             device_.SynchronizeDevice().has_value();
  }
  return fenced;
}

Bytes DeviceAllocator::ReleaseCached(Bytes wanted, PoolId only) {
  std::vector<HandleRef> leaving;
  std::uint64_t fence = 0;
  std::uint64_t last_put = 0;
  {
    MutexLock lock(mutex_);
    if (CapturingLocked()) return 0;
    ProcessEventsLocked();
    SettleArrivalsLocked();
    EmptyBinsLocked();
    leaving =
        FreeHandlesLocked(wanted, only, [&](HandleRef, std::uint64_t users) {
          fence |= users;
          return true;
        });
    // What moved here earlier may still be used through its old address.
    fence |= pages_.fence();
    last_put = pages_.last_put();
    if (leaving.empty() && fence == 0) return 0;
    for (HandleRef handle : leaving) {
      handle.entry().state.store(HandleState::kReleasing);
    }
    for (HandleRef handle : leaving) {
      heap_.Refile(handle);
    }
    ++releasing_;
  }
  if (STRATALLOC_PLANTED(kEarlyReuse)) fence = 0;
  const bool fenced = WaitForStreams(fence);
  std::vector<std::unique_ptr<PlainMemory>> gone;
  Bytes released = 0;
  {
    MutexLock lock(mutex_);
    if (fenced) {
      pages_.Fenced(fence, last_put);
      GiveUpLocked(leaving, /*fenced=*/true);
      for (HandleRef handle : leaving) released += handle.bytes();
    } else {
      for (HandleRef handle : leaving) {
        handle.entry().state.store(HandleState::kResident);
        heap_.Refile(handle);
      }
    }
    gone = TakeEmptyPlainLocked();
    ForgetPoolsLocked();
  }
  gone.clear();  // cudaFree waits for the device
  MutexLock lock(mutex_);
  --releasing_;
  ++releases_;
  released_.NotifyAll();
  return released;
}

Status DeviceAllocator::EmptyCache() {
  {
    MutexLock lock(mutex_);
    if (CapturingLocked()) return {};  // the next call, after it, will
  }
  if (Status status = SynchronizePendingFrees(); !status) return status;
  GiveToDriver();
  if (reclaimer_ != nullptr) reclaimer_->OnEmptyCache(device_.index());
  return {};
}

Bytes DeviceAllocator::GiveToDriver() {
  ReleaseCached(~Bytes{0});
  MutexLock lock(mutex_);
  return pages_.ReleaseFree(AskStreamsLocked());
}

}  // namespace stratalloc
