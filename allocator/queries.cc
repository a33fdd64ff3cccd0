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
  const Block* block = blocks_.Find(address);
  return block != nullptr && block->state == BlockState::kAllocated;
}

bool DeviceAllocator::FindLive(Address address, BlockView* out) {
  MutexLock lock(mutex_);
  Block* block = BlockAtLocked(address);
  if (block == nullptr || !IsLive(block->state)) return false;
  *out = ViewOf(*block);
  return true;
}

Result<SegmentView> DeviceAllocator::BaseAllocation(Address address) {
  MutexLock lock(mutex_);
  Block* block = BlockAtLocked(address);
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
  EmptyBinsLocked();
  Bytes largest = 0;
  for (auto& [key, pool] : pools_) {
    largest = std::max(largest, pool->free_blocks().Largest());
  }
  return largest;
}

void DeviceAllocator::Relabel(Address address, Bytes bytes, Charge charge,
                              bool keep_category) {
  MutexLock lock(mutex_);
  const Address hi = address + std::max<Bytes>(bytes, 1);
  for (Block* b = BlockAtLocked(address); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    Charge to = charge;
    if (keep_category) to.category = b->charge.category;
    if (to == b->charge) continue;
    const Charge from = b->charge;
    b->charge = to;
    b->account = AccountLocked(to);
    if (observer_ == nullptr) continue;
    // The ledger moves device bytes; what is away is brought up in the books
    // first and put back under the new owner, without counting as traffic.
    const auto away = [&](bool up) {
      mutex_.AssertHeld();
      if (!b->segment->region->evictable || away_ == 0) return;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes inside) {
        if (!IsAway(handle.entry().state.load())) return;
        const TierId tier = TierOfLocked(handle.entry());
        observer_->OnMove(device_.index(), up ? from : to,
                          up ? tier : TierId::kDevice,
                          up ? TierId::kDevice : tier, inside,
                          /*moved=*/false);
      });
    };
    away(/*up=*/true);
    observer_->OnRelabel(device_.index(), from, to, b->size);
    away(/*up=*/false);
  }
}

Status DeviceAllocator::EnablePeer(DeviceIndex peer) {
  return WhenReady([&] {
    MutexLock lock(mutex_);
    return EnablePeerLocked(peer);
  });
}

Status DeviceAllocator::EnablePeerLocked(DeviceIndex peer) {
  if (peer == device_.index() ||
      std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) {
    return {};
  }
  for (auto& [base, segment] : segments_) {
    if (segment->plain) continue;  // whoever made it shares it
    HandleRegion& region = *segment->region;
    const std::uint64_t end = region.IndexOf(segment->end() - 1) + 1;
    for (std::uint64_t i = region.IndexOf(base); i < end;) {
      // Mappings that are kept come into use again without a grant.
      const std::uint64_t first = i;
      while (i < end && region.entries[i].physical != nullptr) ++i;
      if (i == first) {
        ++i;
        continue;
      }
      STRATALLOC_RETURN_IF_ERROR(device_.GrantAccess(
          region.AddressOf(first), (i - first) * region.handle_bytes, peer));
    }
  }
  peers_.push_back(peer);
  return {};
}

DeviceStats DeviceAllocator::Stats() {
  MutexLock lock(mutex_);
  CountInactiveLocked();
  DeviceStats stats{stats_, {}, {}, {}, {}, {}};
  live_.Fill(&stats);
  return stats;
}
void DeviceAllocator::ResetPeakStats() {
  MutexLock lock(mutex_);
  stats_.ResetPeaks();
  live_.ResetPeaks();
  if (observer_ != nullptr) observer_->OnResetPeaks(device_.index());
}
void DeviceAllocator::ResetAccumulatedStats() {
  MutexLock lock(mutex_);
  stats_.ResetAccumulated();
  live_.ResetAccumulated();
}

std::vector<SegmentView> DeviceAllocator::Snapshot() {
  MutexLock lock(mutex_);
  EmptyBinsLocked();
  std::vector<SegmentView> views;
  for (const auto& placed : segments_) {
    const Segment& segment = *placed.second;
    HandleRegion& region = *segment.region;
    bool open = false;
    // Room for all at once: growing would copy.
    std::size_t left = blocks_.Count(segment.base, segment.end());
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

Status DeviceAllocator::CheckInvariants() {
  MutexLock lock(mutex_);
  EmptyBinsLocked();
  const auto broken = [](std::string what) {
    return Fail(ErrorCode::kInvalidArgument, "invariant broken: " + what);
  };
  Bytes allocated = 0, active = 0, mapped_bytes = 0;
  std::uint64_t away = 0;
  std::int64_t segments = 0;
  std::size_t pointers = 0;
  std::map<const HandleEntry*, std::uint32_t> live;
  for (auto& [base, segment] : segments_) {
    HandleRegion& region = *segment->region;
    Address at = base;
    const Block* prev = nullptr;
    for (Block* b = segment->first; b != nullptr; prev = b, b = b->next) {
      if (b->address != at || b->prev != prev) {
        return broken("blocks of a segment are contiguous");
      }
      if (blocks_.Find(b->address) != b) {
        return broken("every block is found by its address");
      }
      if (prev != nullptr && !IsLive(b->state) && prev->state == b->state) {
        return broken("free neighbours of one state are merged");
      }
      at = b->end();
      if (b->pins.of(PinReason::kPointer) != 0) {
        if (b->state != BlockState::kAllocated) {
          return broken("what data_ptr() gave away is allocated");
        }
        ++pointers;
      }
      std::string wrong;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes inside) {
        const HandleState state = handle.entry().state.load();
        if (b->state == BlockState::kFree && state != HandleState::kResident) {
          wrong = "a cached block lies in resident handles";
        }
        if (b->state == BlockState::kUnmapped &&
            (state != HandleState::kUnmapped || inside != handle.bytes())) {
          wrong = "unmapped space consists of whole unmapped handles";
        }
        if (b->pins.any() && handle.entry().pins.load() == 0) {
          wrong = "a pinned block has a pin on each of its handles";
        }
        if (IsLive(b->state)) {
          if (state == HandleState::kUnmapped ||
              state == HandleState::kReleasing) {
            wrong = "live bytes are somewhere";
          }
          ++live[&handle.entry()];
          if (!IsAway(state)) {
            active += inside;
            if (b->state == BlockState::kAllocated) allocated += inside;
          }
        }
      });
      if (!wrong.empty()) return broken(wrong);
    }
    if (at != segment->end()) return broken("blocks cover their segment");
    std::uint64_t mapped = 0;
    const std::uint64_t end = region.IndexOf(segment->end() - 1) + 1;
    for (std::uint64_t i = region.IndexOf(base); i < end; ++i) {
      HandleEntry& entry = region.entries[i];
      const HandleState state = entry.state.load();
      if (IsOnDevice(state) && !segment->plain &&
          (entry.physical == nullptr || entry.physical->free ||
           !physical_.IsGranted(&entry.physical))) {
        return broken(
            "what is on the device has memory of its own, with rights");
      }
      if (region.evictable && entry.stays.load() == segment->evictable()) {
        return broken("what stays is a transient pool's");
      }
      if (state == HandleState::kUnmapped) continue;
      if (IsAway(state) && !segment->evictable()) {
        return broken("what is away may leave");
      }
      ++mapped;
      if (IsAway(state)) {
        ++away;
      } else {
        mapped_bytes += region.handle_bytes;
      }
      auto it = live.find(&entry);
      if (region.evictable &&
          entry.live != (it == live.end() ? 0 : it->second)) {
        return broken("live counts the blocks over a handle");
      }
    }
    if (mapped > 0) ++segments;
    if (mapped != segment->mapped) return broken("mapped counts handles");
  }
  for (const auto& [key, pool] : pools_) {
    if (!pool->CheckInvariants()) {
      return broken("free and unmapped blocks are filed where they are");
    }
  }
  const auto current = [](const StatArray& a) {
    return static_cast<Bytes>(a.stats[0].current);
  };
  if (away != away_) return broken("away counts handles not on the device");
  if (segments != stats_.segment.stats[0].current) {
    return broken("segment counts segments with memory");
  }
  DeviceStats stats{stats_, {}, {}, {}, {}, {}};
  live_.Fill(&stats);
  if (allocated != current(stats.allocated_bytes)) {
    return broken("allocated_bytes = allocated bytes on the device");
  }
  if (active != current(stats.active_bytes)) {
    return broken("active_bytes = live bytes on the device");
  }
  if (mapped_bytes != current(stats_.reserved_bytes)) {
    return broken("reserved_bytes = mapped handles");
  }
  if (pointers != pointers_.count() || !pointers_.CheckInvariants()) {
    return broken("what data_ptr() gave away is listed");
  }
  if (!physical_.CheckInvariants()) {
    return broken("free memory is listed once and knows its mappings");
  }
  if (mapped_bytes - plain_bytes_ + physical_.free_bytes() + taken_bytes_ !=
      physical_.created_bytes()) {
    return broken("created = mapped - plain + free + taken physical handles");
  }
  if (allocated > active || active > mapped_bytes ||
      current(stats.requested_bytes) > active) {
    return broken("requested <= active, allocated <= active <= reserved");
  }
  return {};
}

}  // namespace stratalloc
