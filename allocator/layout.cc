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
// hundreds fit into a region; never below 64 MiB.
constexpr Bytes kSegmentLeast = 64 * kMiB;
constexpr Bytes kSegmentFraction = 8;

// What a free block's memory is worth, given its handle's state.
BlockState FreeStateOf(HandleState state) {
  switch (state) {
    case HandleState::kUnmapped:
      return BlockState::kUnmapped;
    case HandleState::kResident:
      return BlockState::kFree;
    default:
      return BlockState::kParked;
  }
}

int RegionNumber(const HandleRegion& region) {
  return (region.evictable ? 0 : 2) + static_cast<int>(region.kind);
}

}  // namespace

Block* DeviceAllocator::NewBlockLocked() {
  Block* block = spare_blocks_;
  if (block == nullptr) return new Block;
  spare_blocks_ = block->bin_next;
  *block = Block{};
  return block;
}

void DeviceAllocator::DropBlockLocked(Block* block) {
  block->bin_next = std::exchange(spare_blocks_, block);
}

Pool& DeviceAllocator::PoolLocked(const PoolKey& key) {
  std::unique_ptr<Pool>& pool = pools_[key];
  if (pool == nullptr) pool = std::make_unique<Pool>(key);
  return *pool;
}

Segment* DeviceAllocator::AddSegmentLocked(Pool& pool, Bytes size) {
  // Its memory comes from elsewhere, and without the lock (FetchPlain).
  if (SourceLocked(pool.key().owner) != nullptr) return nullptr;
  HandleRegion& region = table_.region(
      options_.tiering && IsEvictable(pool.key().lifetime), pool.key().kind);
  const Bytes wanted =
      RoundUp(std::max({size, kSegmentLeast, capacity_ / kSegmentFraction}),
              region.handle_bytes);
  const Bytes least = RoundUp(size, region.handle_bytes);
  Extents& space = free_space_[RegionNumber(region)];
  Bytes bytes = NoSplitLocked(pool) ? least : wanted;
  std::optional<Address> base = space.TakeLow(bytes);
  if (!base) {
    DropEmptySegmentsLocked();
    base = space.TakeLow(bytes = least);
  }
  if (!base) return nullptr;

  auto segment = std::make_unique<Segment>();
  segment->pool = &pool;
  segment->region = &region;
  segment->base = *base;
  segment->bytes = bytes;
  Block* block = NewBlockLocked();
  block->segment = segment.get();
  block->address = *base;
  block->size = bytes;
  block->state = BlockState::kUnmapped;
  segment->first = block;
  blocks_.Insert(block);
  segments_[*base] = segment.get();
  pool.File(block);
  pool.segments().push_back(std::move(segment));
  return pool.segments().back().get();
}

void DeviceAllocator::DropEmptySegmentsLocked() {
  EmptyBinsLocked();
  for (auto& keyed : pools_) {
    Pool& pool = *keyed.second;
    std::erase_if(pool.segments(), [&](const auto& segment) {
      mutex_.AssertHeld();
      Block* only = segment->first;
      if (segment->plain || segment->mapped != 0 || only->next != nullptr ||
          only->state != BlockState::kUnmapped) {
        return false;
      }
      pool.Unfile(only);
      blocks_.Erase(only->address);
      segments_.erase(segment->base);
      history_.ForgetSegment(segment->base);
      DropBlockLocked(only);
      free_space_[RegionNumber(*segment->region)].Add(segment->base,
                                                      segment->bytes);
      return true;
    });
  }
}

Block* DeviceAllocator::SplitLocked(Block* block, Bytes at) {
  STRATALLOC_CHECK(at > 0 && at < block->size, "split outside the block");
  Block* rest = NewBlockLocked();
  rest->segment = block->segment;
  rest->address = block->address + at;
  rest->size = block->size - at;
  rest->state = block->state;
  rest->prev = block;
  rest->next = block->next;
  if (block->next != nullptr) block->next->prev = rest;
  block->next = rest;
  block->size = at;
  blocks_.Insert(rest);
  return rest;
}

Block* DeviceAllocator::MergeLocked(Block* block) {
  Pool& pool = *block->segment->pool;
  if (Block* next = block->next;
      next != nullptr && next->state == block->state) {
    pool.Unfile(next);
    block->size += next->size;
    block->next = next->next;
    if (next->next != nullptr) next->next->prev = block;
    blocks_.Erase(next->address);
    DropBlockLocked(next);
  }
  if (Block* prev = block->prev;
      prev != nullptr && prev->state == block->state) {
    pool.Unfile(prev);
    prev->size += block->size;
    prev->next = block->next;
    if (block->next != nullptr) block->next->prev = prev;
    blocks_.Erase(block->address);
    DropBlockLocked(block);
    block = prev;
  }
  return block;
}

void DeviceAllocator::RefileLocked(Segment& segment, Address lo, Address hi) {
  const HandleRegion& region = *segment.region;
  Block* block = BlockAtLocked(lo);
  while (block != nullptr && block->address < hi) {
    Block* next = block->next;
    if (IsFiled(block->state)) {
      segment.pool->Unfile(block);
      // Cut at every handle edge where the state changes.
      while (block != nullptr) {
        const std::uint64_t first = region.IndexOf(block->address);
        const BlockState state =
            FreeStateOf(region.entries[first].state.load());
        std::uint64_t index = first + 1;
        while (region.AddressOf(index) < block->end() &&
               FreeStateOf(region.entries[index].state.load()) == state) {
          ++index;
        }
        Block* rest = nullptr;
        if (region.AddressOf(index) < block->end()) {
          rest = SplitLocked(block, region.AddressOf(index) - block->address);
        }
        block->state = state;
        // Merging forward is left to the neighbour's own turn: `rest` still
        // has its old state.
        if (Block* prev = block->prev;
            prev != nullptr && prev->state == state) {
          segment.pool->Unfile(prev);
          prev->size += block->size;
          prev->next = block->next;
          if (block->next != nullptr) block->next->prev = prev;
          blocks_.Erase(block->address);
          DropBlockLocked(block);
          block = prev;
        }
        segment.pool->File(block);
        block = rest;
      }
    }
    block = next;
  }
  // The last piece and the first block beyond the range may agree now.
  if (Block* last = hi < segment.end() ? BlockAtLocked(hi - 1) : nullptr;
      last != nullptr && IsFiled(last->state) && last->next != nullptr &&
      last->next->state == last->state) {
    segment.pool->Unfile(last);
    segment.pool->File(MergeLocked(last));
  }
}

Block* DeviceAllocator::BlockAtLocked(Address address) {
  Block* block = blocks_.FindBelow(address);
  return block != nullptr && address < block->end() ? block : nullptr;
}

Segment& DeviceAllocator::SegmentOfLocked(HandleRef handle) {
  auto it = segments_.upper_bound(handle.address());
  STRATALLOC_CHECK(it != segments_.begin(), "handle outside every segment");
  Segment& segment = *std::prev(it)->second;
  STRATALLOC_CHECK(handle.address() < segment.end(),
                   "handle outside every segment");
  return segment;
}

bool DeviceAllocator::MapLocked(Segment& segment, Address lo, Address hi,
                                Bytes limit) {
  HandleRegion& region = *segment.region;
  Bytes needed = 0;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    if (region.entries[i].state.load() == HandleState::kUnmapped) {
      needed += region.handle_bytes;
    }
  }
  // Beyond the limit nothing is mapped in vain.
  limit -= std::min(limit, plain_bytes_);
  if (physical_.used_bytes() + needed > limit) return false;
  std::vector<HandleRef> mapped;
  bool complete = true;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    HandleRef handle{&region, i};
    HandleEntry& entry = handle.entry();
    if (entry.state.load() != HandleState::kUnmapped) continue;
    Result<PhysicalHandle> physical =
        physical_.Take(region.handle_bytes, limit);
    if (!physical) {
      complete = false;
      break;
    }
    if (Status status =
            device_.Map(handle.address(), handle.bytes(), *physical, peers_);
        !status) {
      physical_.Put(region.handle_bytes, *physical);
      complete = false;
      break;
    }
    entry.physical = *physical;
    entry.fence.store(0);
    entry.dirty.store(true);
    entry.has_copy.store(false);
    entry.state.store(HandleState::kResident);
    ++segment.mapped;
    mapped.push_back(handle);
  }
  if (!complete) {
    // Untouched by anybody: no fence needed before unmapping again.
    for (HandleRef handle : mapped) UnmapLocked(handle);
  } else {
    for (HandleRef handle : mapped) {
      stats_.reserved_bytes.For(region.kind,
                                [&](Stat& s) { s.Increase(handle.bytes()); });
      ++stats_.num_device_alloc;
    }
    RecordMappedLocked(TraceAction::kSegmentMap, mapped, nullptr);
    if (segment.mapped == mapped.size() && !mapped.empty()) {
      stats_.segment.For(region.kind, [](Stat& s) { s.Increase(1); });
    }
  }
  RefileLocked(
      segment, RoundDown(lo - region.base, region.handle_bytes) + region.base,
      std::min(segment.end(),
               RoundUp(hi - region.base, region.handle_bytes) + region.base));
  return complete;
}

// The bare driver step and the entry; statistics and refiling are the
// caller's.
void DeviceAllocator::UnmapLocked(HandleRef handle) {
  HandleEntry& entry = handle.entry();
  if (Segment& segment = SegmentOfLocked(handle); segment.plain) {
    entry.state.store(HandleState::kUnmapped);
    --segment.mapped;
    return;  // TakeEmptyPlainLocked does the rest
  }
  Status status = device_.Unmap(handle.address(), handle.bytes());
  STRATALLOC_CHECK(status.has_value(), status.error().message);
  physical_.Put(handle.bytes(), entry.physical);
  entry.physical = kNoHandle;
  entry.fence.store(0);  // what it named has been waited for
  entry.state.store(HandleState::kUnmapped);
  --SegmentOfLocked(handle).mapped;
}

}  // namespace stratalloc
