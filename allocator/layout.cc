// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: how address space is divided, mapped and unmapped.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {
namespace {

// A new segment is an eighth of the card, so that a handful serve a pool and
// hundreds fit into a region; never below Options::segment_least.
constexpr Bytes kSegmentFraction = 8;

}  // namespace

Pool& DeviceAllocator::PoolLocked(const PoolKey& key) {
  if (Pool* pool = heap_.FindPool(key)) return *pool;
  streams_of_mallocs_.insert(key.stream);
  return heap_.PoolOf(key);
}

Segment* DeviceAllocator::AddSegmentLocked(Pool& pool, Bytes size) {
  // Its memory comes from elsewhere, and without the lock (FetchPlain).
  if (SourceLocked(pool.key()) != nullptr) return nullptr;
  HandleRegion& region = table_.region(
      options_.tiering && !pool.key().owner.is_private(), pool.key().kind);
  const Bytes least = RoundUp(size, region.handle_bytes);
  const Bytes wanted = RoundUp(
      std::max({size, options_.segment_least, capacity_ / kSegmentFraction}),
      region.handle_bytes);
  Segment* segment =
      heap_.AddSegment(pool, region, NoSplitLocked(pool) ? least : wanted);
  if (segment != nullptr) return segment;
  DropEmptySegmentsLocked();
  return heap_.AddSegment(pool, region, least);
}

bool DeviceAllocator::DropKeptLocked(Segment& segment) {
  HandleRegion& region = *segment.region;
  const StreamsIdle idle = AskStreamsLocked();
  const std::uint64_t end = region.IndexOf(segment.end() - 1) + 1;
  std::vector<PhysicalMemory**> kept;
  for (std::uint64_t i = region.IndexOf(segment.base); i < end; ++i) {
    HandleEntry& entry = region.entries[i];
    if (entry.physical == nullptr) continue;
    if (!idle(entry.fence.load())) return false;
    kept.push_back(&entry.physical);
  }
  return physical_.Unmap(std::move(kept)).has_value();
}

void DeviceAllocator::DropEmptySegmentsLocked() {
  EmptyBinsLocked();
  for (const auto& [key, pool] : heap_.pools()) {
    heap_.DropSegments(*pool, [&](Segment& segment) {
      mutex_.AssertHeld();
      return !segment.plain && DropKeptLocked(segment);
    });
  }
}

Address DeviceAllocator::BusyPlaceLocked(Address lo, Address hi,
                                         std::uint64_t own,
                                         const StreamsIdle& idle) {
  HandleRegion& region = *heap_.BlockAt(lo)->segment->region;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    const HandleEntry& entry = region.entries[i];
    if (entry.state.load() != HandleState::kUnmapped ||
        entry.physical == nullptr || entry.physical->free ||
        idle(entry.fence.load())) {
      continue;
    }
    if (FreeElsewhereLocked(entry.physical, lo, hi, own, idle).region ==
        nullptr) {
      return region.AddressOf(i);
    }
  }
  return 0;
}

bool DeviceAllocator::KeepsMappings(const Segment& segment) {
  return !segment.plain && !segment.pool->key().owner.is_private();
}

Status DeviceAllocator::GrantLocked(Address address, Bytes bytes,
                                    const StreamsIdle& idle) {
  Status granted = device_.GrantAccess(address, bytes, peers_);
  if (!granted && granted.error().code == ErrorCode::kOutOfMemory &&
      physical_.ReleaseFree(idle) > 0) {
    granted = device_.GrantAccess(address, bytes, peers_);
  }
  return granted;
}

DeviceAllocator::Mapped DeviceAllocator::MapLocked(Segment& segment, Address lo,
                                                   Address hi, Bytes limit,
                                                   const StreamsIdle& idle) {
  HandleRegion& region = *segment.region;
  std::vector<HandleRef> wanted;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    if (region.entries[i].state.load() == HandleState::kUnmapped) {
      wanted.push_back(HandleRef{&region, i});
    }
  }
  // Beyond the limit nothing is mapped in vain.
  limit -= std::min(limit, PlainLocked());
  const Bytes needed = wanted.size() * region.handle_bytes;
  if (physical_.used_bytes() + needed > limit) {
    lacking_ = physical_.used_bytes() + needed - limit;
    return Mapped::kNoMemory;
  }
  const std::uint64_t own = OwnBitLocked(segment.pool->key().stream);

  // Memory that is still mapped where it is wanted first, so that no other
  // position here takes it.
  std::vector<bool> kept(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    PhysicalMemory*& memory = wanted[i].entry().physical;
    kept[i] = memory != nullptr && physical_.IsGranted(&memory) &&
              physical_.TakeBack(memory, own, idle);
  }
  bool complete = true, busy = false;
  std::size_t fresh = 0;  // positions that were looked at below
  for (; complete && fresh < wanted.size(); ++fresh) {
    if (kept[fresh]) continue;
    const HandleRef handle = wanted[fresh];
    HandleEntry& entry = handle.entry();
    Result<PhysicalMemory*> memory =
        physical_.Take(region.handle_bytes, limit, own, idle);
    if (!NoteErrorLocked(memory)) {
      lacking_ = (wanted.size() - fresh) * region.handle_bytes;
      complete = false;
      break;
    }
    bool failed = false;
    if (entry.physical != nullptr && idle(entry.fence.load())) {
      failed = !NoteErrorLocked(physical_.Unmap(&entry.physical));
    }
    busy = entry.physical != nullptr && !failed;
    if (busy || failed ||
        !NoteErrorLocked(
            physical_.Map(handle.address(), *memory, &entry.physical))) {
      physical_.Put(*memory, (*memory)->fence);
      complete = false;
      break;
    }
  }
  // Rights are granted by ranges: one call costs as much as one for a handle.
  for (std::size_t i = 0; complete && i < wanted.size();) {
    const Address start = wanted[i].address();
    const std::size_t first = i;
    Address end = start;
    for (; i < wanted.size() && !kept[i] && wanted[i].address() == end; ++i) {
      end += region.handle_bytes;
    }
    if (end == start) {
      ++i;
    } else if (!NoteErrorLocked(GrantLocked(start, end - start, idle))) {
      complete = false;
    } else {
      for (std::size_t one = first; one < i; ++one) {
        physical_.NoteGranted(&wanted[one].entry().physical);
        // Should a later range be refused, the next try begins there.
        if (KeepsMappings(segment)) kept[one] = true;
      }
    }
  }
  if (complete) {
    for (HandleRef handle : wanted) {
      HandleEntry& entry = handle.entry();
      entry.fence.store(0);
      entry.dirty.store(true);
      entry.has_copy.store(false);
      // Of what lay here before.
      for (auto& interval : entry.intervals) interval.store(0);
      entry.physical->used_at = handle.address();
      entry.state.store(HandleState::kResident);
    }
    heap_.NoteMapped(segment, wanted.size());
    stats_.reserved_bytes.For(region.kind, [&](Stat& s) {
      s.Increase(static_cast<std::int64_t>(needed));
    });
    stats_.num_device_alloc += static_cast<std::int64_t>(wanted.size());
    RecordMappedLocked(TraceAction::kSegmentMap, wanted, nullptr);
  } else {
    // Used by nobody: what was mapped is unmapped again without a fence. What
    // the driver refuses to unmap stays, without rights.
    std::vector<PhysicalMemory**> in_vain;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!kept[i] && i >= fresh) continue;
      PhysicalMemory*& memory = wanted[i].entry().physical;
      if (!kept[i]) in_vain.push_back(&memory);
      physical_.Put(memory, memory->fence);
    }
    (void)physical_.Unmap(std::move(in_vain));
  }
  heap_.Refile(
      segment, RoundDown(lo - region.base, region.handle_bytes) + region.base,
      std::min(segment.end(),
               RoundUp(hi - region.base, region.handle_bytes) + region.base));
  if (complete) return Mapped::kYes;
  return busy ? Mapped::kPlaceBusy : Mapped::kNoMemory;
}

// The bare step and the entry; statistics and refiling are the caller's.
void DeviceAllocator::UnmapLocked(HandleRef handle, PhysicalMemory* memory,
                                  std::uint64_t fence) {
  HandleEntry& entry = handle.entry();
  Segment& segment = heap_.SegmentOf(handle);
  entry.state.store(HandleState::kUnmapped);
  if (segment.plain) return;  // TakeEmptyPlainLocked does the rest
  entry.fence.store(fence);
  // Where bytes are away a stray access must fault. Where the driver refuses,
  // the mapping is kept as others are.
  if (entry.physical != nullptr &&
      (!KeepsMappings(segment) || entry.live > 0)) {
    (void)physical_.Unmap(&entry.physical);
  }
  physical_.Put(memory, fence);
}

}  // namespace stratalloc
