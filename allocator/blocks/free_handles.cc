// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/free_handles.h"

#include <algorithm>

#include "allocator/base/planted.h"

namespace stratalloc {

std::uint64_t FreeHandles::UsersOf(HandleRef handle) const {
  const PoolKey& key = p_.heap.SegmentOf(handle).pool->key();
  // A graph that was captured into a private pool runs on any stream, and may
  // still run when the pool's last use is over: only the device knows.
  const int bit = key.owner.is_private() ? StreamTable::kOverflowBit
                                         : p_.streams.BitOf(key.stream);
  return std::uint64_t{1} << bit | handle.entry().used_streams.load();
}

std::vector<HandleRef> FreeHandles::Find(
    Bytes wanted, PoolId only,
    const std::function<bool(HandleRef, std::uint64_t)>& accept) const {
  std::vector<HandleRef> found;
  Bytes bytes = 0;
  for (auto& [key, pool] : p_.heap.pools()) {
    if (only.is_private() ? key.owner != only
                          : p_.private_pools.IsInUse(key.owner)) {
      continue;
    }
    const bool more = pool->free_blocks().ForEach([&](const FreeKey& free) {
      HandleRegion& region = *free.block->segment->region;
      const Address lo = region.base + RoundUp(free.address - region.base,
                                               region.handle_bytes);
      const Address hi =
          region.base + RoundDown(free.address + free.size - region.base,
                                  region.handle_bytes);
      for (Address at = lo; at < hi; at += region.handle_bytes) {
        if (bytes >= wanted) return false;
        HandleRef handle{&region, region.IndexOf(at)};
        if (!accept(handle, UsersOf(handle))) continue;
        found.push_back(handle);
        bytes += region.handle_bytes;
      }
      return true;
    });
    if (!more) break;
  }
  return found;
}

void FreeHandles::GiveUp(const std::vector<HandleRef>& handles, bool fenced) {
  p_.traces.Mapped(TraceAction::kSegmentUnmap, handles, TraceCause::kNone);
  for (std::size_t i = 0; i < handles.size();) {
    Segment& segment = p_.heap.SegmentOf(handles[i]);
    const Address lo = handles[i].address();
    Address hi = lo;
    // A run at a time: refiling looks at every block it touches.
    for (;
         i < handles.size() && handles[i].address() == hi && hi < segment.end();
         ++i) {
      const HandleRef handle = handles[i];
      const bool idle = fenced || STRATALLOC_PLANTED(kEarlyReuse);
      if (segment.unmanaged) {
        handle.entry().state.store(HandleState::kUnmapped);
      } else {
        p_.pages.GiveUp(handle, handle.entry().physical,
                        idle ? 0 : UsersOf(handle), KeepsMappings(segment));
      }
      hi += handle.bytes();
      ++p_.stats.num_device_free;
    }
    p_.stats.Unreserve(segment.pool->key().owner, segment.region->kind,
                       hi - lo);
    p_.heap.NoteUnmapped(segment, (hi - lo) / segment.region->handle_bytes);
    p_.heap.Refile(segment, lo, hi);
  }
}

bool FreeHandles::MayMove(HandleRef handle, std::uint64_t own,
                          const StreamsIdle& idle) const {
  const Segment& from = p_.heap.SegmentOf(handle);
  if (from.unmanaged || p_.private_pools.IsInUse(from.pool->key().owner))
    return false;
  if (STRATALLOC_PLANTED(kEarlyReuse)) return true;
  std::uint64_t users = UsersOf(handle);
  // Where the mapping stays, work that is in order needs no waiting.
  if (KeepsMappings(from)) users &= ~own;
  return idle(users);
}

HandleRef FreeHandles::Elsewhere(const PhysicalMemory* memory, Address lo,
                                 Address hi, std::uint64_t own,
                                 const StreamsIdle& idle,
                                 const Block** near) const {
  const Address at = memory->used_at;
  if (memory->free || at == 0 || (at >= lo && at < hi)) return {};
  const Block* block = near == nullptr ? nullptr : *near;
  if (block == nullptr || at < block->address || at >= block->end()) {
    block = p_.heap.BlockAt(at);
    if (near != nullptr) *near = block;
  }
  if (block == nullptr || block->state != BlockState::kFree ||
      block->address > at || block->end() < at + memory->bytes) {
    return {};
  }
  HandleRegion& region = *block->segment->region;
  const HandleRef handle{&region, region.IndexOf(at)};
  return MayMove(handle, own, idle) ? handle : HandleRef{};
}

void FreeHandles::MoveTo(Segment& segment, Address lo, Address hi,
                         const StreamsIdle& idle) {
  if (p_.captures.UnderWay()) return;
  p_.blocks.EmptyBins();
  HandleRegion& region = *segment.region;
  const std::uint64_t own = p_.captures.OwnBit(segment.pool->key().stream);
  // Memory that is mapped here already costs nothing to have back.
  std::vector<HandleRef> moving;
  Bytes missing = 0;
  const Block* near = nullptr;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    const HandleEntry& entry = region.entries[i];
    if (entry.state.load() != HandleState::kUnmapped) continue;
    PhysicalMemory* memory = entry.physical;
    const HandleRef found = memory == nullptr
                                ? HandleRef{}
                                : Elsewhere(memory, lo, hi, own, idle, &near);
    if (found.region == nullptr) {
      missing += region.handle_bytes;
    } else {
      memory->used_at = 0;  // found once
      moving.push_back(found);
    }
  }
  missing -= std::min(missing, p_.pages.free_bytes());
  if (missing > 0) {
    const std::vector<HandleRef> others =
        Find(missing, PoolId{}, [&](HandleRef handle, std::uint64_t) {
          const Address at = handle.address();
          return (at < lo || at >= hi) &&
                 handle.bytes() == region.handle_bytes &&
                 handle.entry().physical != nullptr &&
                 handle.entry().physical->used_at != 0 &&
                 MayMove(handle, own, idle);
        });
    moving.insert(moving.end(), others.begin(), others.end());
  }
  std::sort(moving.begin(), moving.end(),
            [](HandleRef a, HandleRef b) { return a.address() < b.address(); });
  GiveUp(moving, /*fenced=*/false);
}

Address FreeHandles::BusyPlace(Address lo, Address hi, std::uint64_t own,
                               const StreamsIdle& idle) const {
  HandleRegion& region = *p_.heap.BlockAt(lo)->segment->region;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    const HandleEntry& entry = region.entries[i];
    if (entry.state.load() != HandleState::kUnmapped ||
        entry.physical == nullptr || entry.physical->free ||
        idle(entry.used_streams.load())) {
      continue;
    }
    if (Elsewhere(entry.physical, lo, hi, own, idle).region == nullptr) {
      return region.AddressOf(i);
    }
  }
  return 0;
}

FreeHandles::Release FreeHandles::BeginRelease(Bytes wanted, PoolId only) {
  Release release;
  release.handles = Find(wanted, only, [&](HandleRef, std::uint64_t users) {
    release.used_streams |= users;
    return true;
  });
  // What moved here earlier may still be used through its old address.
  release.used_streams |= p_.pages.used_streams();
  release.last_put = p_.pages.last_put();
  for (HandleRef handle : release.handles) {
    handle.entry().state.store(HandleState::kReleasing);
  }
  for (HandleRef handle : release.handles) p_.heap.Refile(handle);
  return release;
}

Bytes FreeHandles::EndRelease(const Release& release, bool fenced) {
  if (!fenced) {
    for (HandleRef handle : release.handles) {
      handle.entry().state.store(HandleState::kResident);
      p_.heap.Refile(handle);
    }
    return 0;
  }
  p_.pages.Fenced(release.used_streams, release.last_put);
  GiveUp(release.handles, /*fenced=*/true);
  Bytes released = 0;
  for (HandleRef handle : release.handles) released += handle.bytes();
  return released;
}

}  // namespace stratalloc
