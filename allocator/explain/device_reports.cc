// SPDX-License-Identifier: Apache-2.0
#include "allocator/explain/device_reports.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "allocator/state/frame_accounts.h"

namespace stratalloc {
namespace {

BlockView ViewOf(const Block& block) {
  return BlockView{block.address, block.size, block.requested, block.state,
                   FrameAccounts::Get().Resolved(block.charge)};
}

// Free address space and blocks whose handles are away are no device memory.
bool IsMapped(const Block& block) {
  return block.state != BlockState::kUnmapped;
}

// Of a free block that is mapped: handles that nothing else lies in.
Bytes WholeHandlesIn(const Block& block) {
  const HandleRegion& region = *block.segment->region;
  const Bytes lo = RoundUp(block.address - region.base, region.handle_bytes);
  const Bytes hi = RoundDown(block.end() - region.base, region.handle_bytes);
  return hi > lo ? hi - lo : 0;
}

}  // namespace

bool DeviceReports::Owns(Address address) {
  MutexLock lock(p_.mutex);
  const Block* block = p_.heap.Find(address);
  return block != nullptr && block->state == BlockState::kAllocated;
}

bool DeviceReports::FindLive(Address address, BlockView* out) {
  MutexLock lock(p_.mutex);
  Block* block = p_.heap.BlockAt(address);
  if (block == nullptr || !IsLive(block->state)) return false;
  *out = ViewOf(*block);
  return true;
}

bool DeviceReports::FindPlaced(Address address, Placed* out) {
  MutexLock lock(p_.mutex);
  Block* const block = p_.heap.BlockAt(address);
  if (block == nullptr || !IsLive(block->state)) return false;
  p_.captures.Settle();  // what is over counts
  out->lifetime = block->segment->pool->key().lifetime;
  out->charge = FrameAccounts::Get().Resolved(block->charge);
  out->stream = block->segment->pool->key().stream;
  out->recorded = block->streams;
  out->held = block->shared;
  for (int i = 0; i < kPinReasons; ++i) {
    const auto reason = static_cast<PinReason>(i);
    out->held |= reason != PinReason::kPointer && block->pins.of(reason) != 0;
  }
  if (!block->segment->evictable()) {
    out->held |= HasCaptured();
    return true;
  }
  const std::set<const HandleUse*> of_graphs = p_.private_pools.Operands();
  ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
    out->held |= of_graphs.contains(&handle.use());
  });
  return true;
}

Result<SegmentView> DeviceReports::BaseAllocation(Address address) {
  MutexLock lock(p_.mutex);
  Block* block = p_.heap.BlockAt(address);
  if (block == nullptr || !IsLive(block->state)) {
    return Fail(ErrorCode::kNotFound, "invalid device pointer");
  }
  Block* first = block;
  while (first->prev != nullptr && IsMapped(*first->prev)) first = first->prev;
  SegmentView view;
  view.address = first->address;
  view.stream = block->segment->pool->key().stream;
  view.kind = block->segment->pool->key().kind;
  for (Block* b = first; b != nullptr && IsMapped(*b); b = b->next) {
    view.bytes += b->size;
  }
  return view;
}

Bytes DeviceReports::LargestCached() {
  MutexLock lock(p_.mutex);
  return LargestCachedLocked();
}
Bytes DeviceReports::LargestCachedLocked() {
  p_.blocks.EmptyBins();
  Bytes largest = 0;
  for (auto& [key, pool] : p_.heap.pools()) {
    largest = std::max(largest, pool->free_blocks().Largest());
  }
  return largest;
}

DeviceReports::Usage DeviceReports::Used() {
  MutexLock lock(p_.mutex);
  Usage usage;
  usage.largest_free = LargestCachedLocked();  // empties the bins, too
  usage.stats = StatsLocked();
  usage.limit = p_.limit.Now();
  // No segment without virtual memory management is smaller either.
  const Bytes least =
      p_.table.region(/*evictable=*/true, PoolKind::kSmall).handle_bytes;
  for (const auto& [key, pool] : p_.heap.pools()) {
    Bytes& whole =
        key.owner.is_private() ? usage.in_private_pools : usage.releasable;
    pool->free_blocks().ForEach(
        [&whole](const FreeKey& free) {
          whole += WholeHandlesIn(*free.block);
          return true;
        },
        least);
  }
  const auto now = [](const StatArray& array) {
    return static_cast<Bytes>(array.stats[0].current);
  };
  const Bytes active = now(usage.stats.active_bytes);
  usage.pending = active - now(usage.stats.allocated_bytes);
  const Bytes reserved = now(usage.stats.reserved_bytes);
  usage.stranded = reserved - std::min(reserved, active + usage.releasable +
                                                     usage.in_private_pools);
  return usage;
}

DeviceStats DeviceReports::Stats() {
  MutexLock lock(p_.mutex);
  return StatsLocked();
}
DeviceStats DeviceReports::StatsLocked() {
  if (p_.unmanaged.MayBeInactive()) {
    p_.blocks.EmptyBins();
    p_.unmanaged.CountInactive();
  }
  DeviceStats stats{p_.stats, {}, {}, {}, {}, {}};
  p_.live.Fill(&stats);
  return stats;
}
void DeviceReports::ResetPeakStats() {
  MutexLock lock(p_.mutex);
  p_.stats.ResetPeaks();
  p_.live.ResetPeaks();
  p_.accounts.ResetPeaks();
}
void DeviceReports::ResetAccumulatedStats() {
  MutexLock lock(p_.mutex);
  p_.stats.ResetAccumulated();
  p_.live.ResetAccumulated();
}

void DeviceReports::CountSynchronisations(std::int64_t number) {
  MutexLock lock(p_.mutex);
  p_.stats.num_sync_all_streams += number;
}

std::vector<SegmentView> DeviceReports::Snapshot() {
  MutexLock lock(p_.mutex);
  return SnapshotLocked();
}
DeviceReports::Moment DeviceReports::Now() {
  MutexLock lock(p_.mutex);
  return {SnapshotLocked(), StatsLocked(), p_.history.order()};
}
std::vector<SegmentView> DeviceReports::SnapshotLocked() {
  p_.blocks.EmptyBins();
  std::vector<SegmentView> views;
  for (const auto& placed : p_.heap.segments()) {
    const Segment& segment = *placed.second;
    HandleRegion& region = *segment.region;
    bool open = false;
    // Room for all at once: growing would copy.
    std::size_t left = p_.heap.CountBlocks(segment.base, segment.end());
    for (Block* b = segment.first; b != nullptr; b = b->next, --left) {
      // The next one comes while this one is looked at.
      if (b->next != nullptr) {
        __builtin_prefetch(b->next);
        __builtin_prefetch(&b->next->next);
      }
      // A block is cut where its handles come and go: a snapshot speaks of
      // device memory only.
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes inside) {
        p_.mutex.AssertHeld();
        const HandleState state = handle.entry().state.load();
        if (state == HandleState::kUnmapped || IsAway(state)) {
          open = false;
          return;
        }
        const Address at = std::max(b->address, handle.address());
        if (!open) {
          SegmentView view;
          view.address = at;
          view.stream = segment.pool->key().stream;
          view.kind = region.kind;
          view.unmanaged = segment.unmanaged;
          view.context = p_.history.SegmentContext(segment.base);
          view.owner = segment.pool->key().owner;
          views.push_back(std::move(view));
          views.back().blocks.reserve(left);
          open = true;
        }
        SegmentView& view = views.back();
        const Bytes before = at - b->address;
        const Bytes requested =
            b->requested > before ? std::min(inside, b->requested - before) : 0;
        if (!view.blocks.empty() && b->address < at &&
            view.blocks.back().address >= b->address) {
          view.blocks.back().bytes += inside;
          view.blocks.back().requested += requested;
        } else {
          view.blocks.push_back(BlockView{
              at, inside, requested, b->state,
              FrameAccounts::Get().Resolved(b->charge),
              IsLive(b->state) ? p_.history.BlockContext(b->address) : nullptr,
              FrameAccounts::Get().OpenFrame(b->charge)});
        }
        view.bytes += inside;
      });
    }
  }
  return views;
}

std::vector<SiteBytes> DeviceReports::Sites() {
  MutexLock lock(p_.mutex);
  return SiteBytesOf(p_.heap);
}

const char* DeviceReports::CheckHandlesLocked(OnDeviceSums* sums) {
  const char* wrong = nullptr;
  for (const auto& [base, segment] : p_.heap.segments()) {
    ForEachHandleOf(
        *segment, [&, unmanaged = segment->unmanaged](HandleRef handle) {
          p_.mutex.AssertHeld();
          const HandleState state = handle.entry().state.load();
          if (IsOnDevice(state) && !unmanaged && !p_.pages.IsGranted(handle)) {
            wrong = "what is on the device has memory of its own, with rights";
          }
          if (state != HandleState::kUnmapped && !IsAway(state)) {
            sums->mapped += handle.bytes();
          }
        });
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (!IsLive(b->state)) continue;
      const Bytes here = p_.heap.OnDevice(*b).size;
      sums->active += here;
      if (b->state == BlockState::kAllocated) sums->allocated += here;
    }
  }
  return wrong;
}

const char* DeviceReports::CheckSumsLocked(const OnDeviceSums& sums) {
  DeviceStats stats{p_.stats, {}, {}, {}, {}, {}};
  p_.live.Fill(&stats);
  const auto current = [](const StatArray& a) {
    return static_cast<Bytes>(a.stats[0].current);
  };
  if (sums.allocated != current(stats.allocated_bytes)) {
    return "allocated_bytes = allocated bytes on the device";
  }
  if (sums.active != current(stats.active_bytes)) {
    return "active_bytes = live bytes on the device";
  }
  if (sums.mapped != current(p_.stats.reserved_bytes)) {
    return "reserved_bytes = mapped handles";
  }
  if (const char* wrong = p_.pages.CheckInvariants(sums.mapped)) return wrong;
  if (sums.allocated > sums.active || sums.active > sums.mapped ||
      current(stats.requested_bytes) > sums.active) {
    return "requested <= active, allocated <= active <= reserved";
  }
  return nullptr;
}

Status DeviceReports::CheckInvariants() {
  MutexLock lock(p_.mutex);
  p_.blocks.EmptyBins();
  OnDeviceSums sums;
  const char* broken = p_.heap.CheckInvariants();
  if (broken == nullptr) broken = CheckHandlesLocked(&sums);
  if (broken == nullptr) broken = p_.pins.Check();
  if (broken == nullptr) broken = CheckSumsLocked(sums);
  if (broken == nullptr) return {};
  return Fail(ErrorCode::kInvalidArgument,
              std::string("invariant broken: ") + broken);
}

}  // namespace stratalloc
