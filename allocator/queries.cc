// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: everything that reads, relabels or checks.
#include <algorithm>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {
namespace {

BlockView ViewOf(const Block& block) {
  return BlockView{block.address, block.size, block.requested, block.state,
                   block.charge};
}

// Free address space and blocks whose handles are away are no device memory.
bool IsMapped(const Block& block) {
  return block.state != BlockState::kUnmapped;
}

}  // namespace

bool DeviceAllocator::Owns(Address address) {
  MutexLock lock(mutex_);
  const Block* block = heap_.Find(address);
  return block != nullptr && block->state == BlockState::kAllocated;
}

bool DeviceAllocator::ContainsPlain(Address address) {
  if (!plain_.some()) return false;
  MutexLock lock(mutex_);
  return plain_.Contains(address);
}

bool DeviceAllocator::FindLive(Address address, BlockView* out) {
  MutexLock lock(mutex_);
  Block* block = heap_.BlockAt(address);
  if (block == nullptr || !IsLive(block->state)) return false;
  *out = ViewOf(*block);
  return true;
}

Result<SegmentView> DeviceAllocator::BaseAllocation(Address address) {
  MutexLock lock(mutex_);
  Block* block = heap_.BlockAt(address);
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

Bytes DeviceAllocator::LargestCached() {
  MutexLock lock(mutex_);
  blocks_.EmptyBins();
  Bytes largest = 0;
  for (auto& [key, pool] : heap_.pools()) {
    largest = std::max(largest, pool->free_blocks().Largest());
  }
  return largest;
}

void DeviceAllocator::Relabel(Address address, Bytes bytes, Charge charge,
                              bool keep_category) {
  MutexLock lock(mutex_);
  const Address hi = address + std::max<Bytes>(bytes, 1);
  for (Block* b = heap_.BlockAt(address); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    Charge to = charge;
    if (keep_category) to.category = b->charge.category;
    if (to == b->charge) continue;
    ChargeAccount* const from = std::exchange(b->account, accounts_.Of(to));
    b->charge = to;
    if (from == nullptr) continue;
    ForEachHandleOf(*b, [&](HandleRef handle, Bytes inside) {
      from->Give(inside, Residency::TierOf(handle.entry().state.load()),
                 *b->account);
    });
  }
}

Status DeviceAllocator::EnablePeer(DeviceIndex peer) {
  return WhenReady([&] {
    MutexLock lock(mutex_);
    return EnablePeerLocked(peer);
  });
}

Status DeviceAllocator::EnablePeerLocked(DeviceIndex peer) {
  if (peer == device_.index() || pages_.IsPeer(peer)) return {};
  for (const auto& [base, segment] : heap_.segments()) {
    if (segment->plain) continue;  // whoever made it shares it
    STRATALLOC_RETURN_IF_ERROR(
        pages_.GrantPeer(*segment->region, base, segment->end(), peer));
  }
  pages_.AddPeer(peer);
  return {};
}

DeviceStats DeviceAllocator::Stats() {
  MutexLock lock(mutex_);
  if (plain_.MayBeInactive()) {
    blocks_.EmptyBins();
    plain_.CountInactive();
  }
  DeviceStats stats{stats_, {}, {}, {}, {}, {}};
  live_.Fill(&stats);
  return stats;
}
void DeviceAllocator::ResetPeakStats() {
  MutexLock lock(mutex_);
  stats_.ResetPeaks();
  live_.ResetPeaks();
  accounts_.ResetPeaks();
}
void DeviceAllocator::ResetAccumulatedStats() {
  MutexLock lock(mutex_);
  stats_.ResetAccumulated();
  live_.ResetAccumulated();
}

std::vector<SegmentView> DeviceAllocator::Snapshot() {
  MutexLock lock(mutex_);
  blocks_.EmptyBins();
  std::vector<SegmentView> views;
  for (const auto& placed : heap_.segments()) {
    const Segment& segment = *placed.second;
    HandleRegion& region = *segment.region;
    bool open = false;
    // Room for all at once: growing would copy.
    std::size_t left = heap_.CountBlocks(segment.base, segment.end());
    for (Block* b = segment.first; b != nullptr; b = b->next, --left) {
      // The next one comes while this one is looked at.
      if (b->next != nullptr) {
        __builtin_prefetch(b->next);
        __builtin_prefetch(&b->next->next);
      }
      // A block is cut where its handles come and go: a snapshot speaks of
      // device memory only.
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes inside) {
        mutex_.AssertHeld();
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
          view.plain = segment.plain;
          view.context = history_.SegmentContext(segment.base);
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
              at, inside, requested, b->state, b->charge,
              IsLive(b->state) ? history_.BlockContext(b->address) : nullptr});
        }
        view.bytes += inside;
      });
    }
  }
  return views;
}

const char* DeviceAllocator::CheckHandlesLocked(OnDeviceSums* sums) {
  const char* wrong = nullptr;
  for (const auto& [base, segment] : heap_.segments()) {
    ForEachHandleOf(*segment, [&, plain = segment->plain](HandleRef handle) {
      mutex_.AssertHeld();
      const HandleState state = handle.entry().state.load();
      if (IsOnDevice(state) && !plain && !pages_.IsGranted(handle)) {
        wrong = "what is on the device has memory of its own, with rights";
      }
      if (state != HandleState::kUnmapped && !IsAway(state)) {
        sums->mapped += handle.bytes();
      }
    });
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (!IsLive(b->state)) continue;
      const Bytes here = heap_.OnDevice(*b).size;
      sums->active += here;
      if (b->state == BlockState::kAllocated) sums->allocated += here;
    }
  }
  return wrong;
}

const char* DeviceAllocator::CheckSumsLocked(const OnDeviceSums& sums) {
  DeviceStats stats{stats_, {}, {}, {}, {}, {}};
  live_.Fill(&stats);
  const auto current = [](const StatArray& a) {
    return static_cast<Bytes>(a.stats[0].current);
  };
  if (sums.allocated != current(stats.allocated_bytes)) {
    return "allocated_bytes = allocated bytes on the device";
  }
  if (sums.active != current(stats.active_bytes)) {
    return "active_bytes = live bytes on the device";
  }
  if (sums.mapped != current(stats_.reserved_bytes)) {
    return "reserved_bytes = mapped handles";
  }
  if (const char* wrong = pages_.CheckInvariants(sums.mapped)) return wrong;
  if (sums.allocated > sums.active || sums.active > sums.mapped ||
      current(stats.requested_bytes) > sums.active) {
    return "requested <= active, allocated <= active <= reserved";
  }
  return nullptr;
}

Status DeviceAllocator::CheckInvariants() {
  MutexLock lock(mutex_);
  blocks_.EmptyBins();
  OnDeviceSums sums;
  const char* broken = heap_.CheckInvariants();
  if (broken == nullptr) broken = CheckHandlesLocked(&sums);
  if (broken == nullptr) broken = pins_.Check();
  if (broken == nullptr) broken = CheckSumsLocked(sums);
  if (broken == nullptr) return {};
  return Fail(ErrorCode::kInvalidArgument,
              std::string("invariant broken: ") + broken);
}

}  // namespace stratalloc
