// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: free handles change pools where they lie.
//
//   before   | gradient | gradient, free                     | gradient |
//   after    | gradient | free | transient | gradient, free  | gradient |
//            '--segment--------'--segment--'--segment-------------------'
//
// A training step frees its gradients before the forward pass and its
// activations in the backward pass: each lives off what the other freed. Native
// has one pool for both; here a handle has one class at a time, and this is how
// it changes. Memory that moved to an address of its new class instead would
// cost a mapping and a grant each time.
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "allocator/device_allocator.h"

namespace stratalloc {

DeviceAllocator::FreeRun DeviceAllocator::FreeRunAroundLocked(
    const Pool& pool, const Block& block) {
  // What `pool` can have of a free block: all of its own, and whole handles of
  // another class's.
  const auto part = [&](const Block& b) -> FreeRun {
    const HandleRegion& region = *b.segment->region;
    if (b.state != BlockState::kFree || b.segment->plain) return {};
    if (b.segment->pool == &pool) return {b.address, b.end()};
    const PoolKey& key = b.segment->pool->key();
    PoolKey same = pool.key();
    same.lifetime = key.lifetime;
    if (key != same || (pool.evictable() && !region.evictable)) return {};
    return {
        region.base + RoundUp(b.address - region.base, region.handle_bytes),
        region.base + RoundDown(b.end() - region.base, region.handle_bytes)};
  };
  FreeRun run = part(block);
  if (run.lo >= run.hi) return {};
  const HandleRegion* const region = block.segment->region;
  for (const Block* b = &block; run.lo == b->segment->base;) {
    b = BlockAtLocked(run.lo - 1);
    if (b == nullptr || b->segment->region != region) break;
    const FreeRun more = part(*b);
    if (more.lo >= more.hi || more.hi != run.lo) break;
    run.lo = more.lo;
  }
  for (const Block* b = &block; run.hi == b->segment->end();) {
    b = BlockAtLocked(run.hi);
    if (b == nullptr || b->segment->region != region) break;
    const FreeRun more = part(*b);
    if (more.lo != run.hi || more.lo >= more.hi) break;
    run.hi = more.hi;
  }
  return run;
}

Block* DeviceAllocator::TakeOverLocked(Pool& pool, Bytes size) {
  const PoolKey& key = pool.key();
  // Without tiering there is one class.
  if (!options_.tiering || key.owner.is_private()) return nullptr;
  const Bytes handle = table_.region(/*evictable=*/true, key.kind).handle_bytes;
  FreeRun best;
  for (int i = 0; i < kLifetimeClasses; ++i) {
    PoolKey other = key;
    other.lifetime = static_cast<LifetimeClass>(i);
    const auto found = pools_.find(other);
    if (other == key || found == pools_.end()) continue;
    EmptyBinsLocked(*found->second);
    found->second->free_blocks().ForEach(
        [&](const FreeKey& free) {
          const FreeRun run = FreeRunAroundLocked(pool, *free.block);
          if (run.bytes() >= size &&
              (best.bytes() == 0 || run.bytes() < best.bytes())) {
            best = run;
          }
          return true;
        },
        handle);
  }
  if (best.bytes() == 0) return nullptr;
  Address at = best.lo;
  while (at < best.lo + size) {
    Block* block = BlockAtLocked(at);
    if (block->segment->pool == &pool) {
      at = block->end();
      continue;
    }
    const HandleRegion& region = *block->segment->region;
    const Address hi = std::min(
        block->end(), region.base + RoundUp(best.lo + size - region.base,
                                            region.handle_bytes));
    ChangePoolLocked(block, at, hi, pool);
    at = hi;
  }
  return BlockAtLocked(best.lo);
}

void DeviceAllocator::ChangePoolLocked(Block* block, Address lo, Address hi,
                                       Pool& pool) {
  Segment* segment = block->segment;
  Pool& owner = *segment->pool;
  HandleRegion& region = *segment->region;
  owner.Unfile(block);
  if (block->address < lo) {
    Block* rest = SplitLocked(block, lo - block->address);
    owner.File(block);
    block = rest;
  }
  if (block->end() > hi) owner.File(SplitLocked(block, hi - lo));
  if (segment->base < lo) segment = &CutSegmentLocked(*segment, lo);
  if (segment->end() > hi) CutSegmentLocked(*segment, hi);

  auto& from = owner.segments();
  const auto held = std::find_if(from.begin(), from.end(), [&](const auto& s) {
    return s.get() == segment;
  });
  pool.segments().push_back(std::move(*held));
  from.erase(held);
  segment->pool = &pool;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    // Of what lay here before.
    for (auto& interval : region.entries[i].intervals) interval.store(0);
  }
  NoteStaysLocked(*segment, !pool.evictable());
  pool.File(block);
  JoinNeighboursLocked(*segment);
}

void DeviceAllocator::NoteStaysLocked(const Segment& segment, bool stays) {
  HandleRegion& region = *segment.region;
  if (!region.evictable) return;
  for (std::uint64_t i = region.IndexOf(segment.base);
       region.AddressOf(i) < segment.end(); ++i) {
    if (region.entries[i].stays.load() != stays) {
      region.entries[i].stays.store(stays);
    }
  }
}

Segment& DeviceAllocator::CutSegmentLocked(Segment& segment, Address at) {
  HandleRegion& region = *segment.region;
  auto cut = std::make_unique<Segment>(segment);
  Segment& right = *cut;
  right.base = at;
  right.bytes = segment.end() - at;
  segment.bytes = at - segment.base;
  right.first = BlockAtLocked(at);
  right.first->prev->next = nullptr;
  right.first->prev = nullptr;
  for (Block* b = right.first; b != nullptr; b = b->next) b->segment = &right;

  right.mapped = 0;
  for (std::uint64_t i = region.IndexOf(at); region.AddressOf(i) < right.end();
       ++i) {
    if (region.entries[i].state.load() != HandleState::kUnmapped) {
      ++right.mapped;
    }
  }
  segment.mapped -= right.mapped;
  if (segment.mapped > 0 && right.mapped > 0) {
    stats_.segment.For(region.kind, [](Stat& s) { s.Increase(1); });
  }
  segments_[at] = &right;
  history_.CutSegment(segment.base, at);
  segment.pool->segments().push_back(std::move(cut));
  return right;
}

void DeviceAllocator::JoinSegmentsLocked(Segment& left, Segment& right) {
  Pool& pool = *left.pool;
  Block* last = BlockAtLocked(right.base - 1);
  Block* first = right.first;
  last->next = first;
  first->prev = last;
  for (Block* b = first; b != nullptr; b = b->next) b->segment = &left;
  if (IsFiled(last->state) && last->state == first->state) {
    pool.Unfile(last);
    pool.Unfile(first);
    JoinNextLocked(last);
    pool.File(last);
  }
  if (left.mapped > 0 && right.mapped > 0) {
    stats_.segment.For(left.region->kind, [](Stat& s) { s.Decrease(1); });
  }
  left.bytes += right.bytes;
  left.mapped += right.mapped;
  segments_.erase(right.base);
  history_.ForgetSegment(right.base);
  std::erase_if(pool.segments(),
                [&](const auto& s) { return s.get() == &right; });
}

void DeviceAllocator::JoinNeighboursLocked(Segment& segment) {
  const auto joins = [](const Segment& left, const Segment& right) {
    return left.end() == right.base && left.pool == right.pool &&
           left.region == right.region;
  };
  const auto at = segments_.find(segment.base);
  if (const auto next = std::next(at);
      next != segments_.end() && joins(segment, *next->second)) {
    JoinSegmentsLocked(segment, *next->second);
  }
  if (at != segments_.begin() && joins(*std::prev(at)->second, segment)) {
    JoinSegmentsLocked(*std::prev(at)->second, segment);
  }
}

}  // namespace stratalloc
