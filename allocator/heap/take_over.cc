// SPDX-License-Identifier: Apache-2.0
// BlockHeap: free handles change pools where they lie.
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
#include <vector>

#include "allocator/heap/block_heap.h"

namespace stratalloc {

BlockHeap::Run BlockHeap::PartFor(const Pool& pool, const HandleRegion* region,
                                  const Block* block, bool unmapped_too) {
  if (block == nullptr || block->segment->region != region ||
      block->segment->unmanaged) {
    return {};
  }
  if (block->state != BlockState::kFree &&
      !(unmapped_too && block->state == BlockState::kUnmapped)) {
    return {};
  }
  if (block->segment->pool == &pool) return {block->address, block->end()};
  PoolKey same = pool.key();
  same.lifetime = block->segment->pool->key().lifetime;
  if (block->segment->pool->key() != same) return {};
  const Bytes handle = region->handle_bytes;
  return {region->base + RoundUp(block->address - region->base, handle),
          region->base + RoundDown(block->end() - region->base, handle)};
}

BlockHeap::Run BlockHeap::RunAround(const Pool& pool, const Block& block,
                                    bool unmapped_too) const {
  const HandleRegion* const region = block.segment->region;
  Run run = PartFor(pool, region, &block, unmapped_too);
  if (run.bytes() == 0) return {};
  for (const Block* b = Before(block);; b = Before(*b)) {
    const Run more = PartFor(pool, region, b, unmapped_too);
    if (more.bytes() == 0 || more.hi != run.lo) break;
    run.lo = more.lo;
  }
  for (const Block* b = After(block);; b = After(*b)) {
    const Run more = PartFor(pool, region, b, unmapped_too);
    if (more.bytes() == 0 || more.lo != run.hi) break;
    run.hi = more.hi;
  }
  return run;
}

const Block* BlockHeap::Before(const Block& block) const {
  if (block.prev != nullptr) return block.prev;
  const auto at = segments_.find(block.address);
  if (at == segments_.end() || at == segments_.begin()) return nullptr;
  const Address end = std::prev(at)->second->end();
  return end == block.address ? BlockAt(end - 1) : nullptr;
}

const Block* BlockHeap::After(const Block& block) const {
  if (block.next != nullptr) return block.next;
  const auto next = segments_.find(block.end());
  return next == segments_.end() ? nullptr : next->second->first;
}

std::vector<Pool*> BlockHeap::OtherClasses(const Pool& pool) const {
  std::vector<Pool*> others;
  for (int i = 0; i < kLifetimeClasses; ++i) {
    PoolKey key = pool.key();
    key.lifetime = static_cast<LifetimeClass>(i);
    Pool* const other = key == pool.key() ? nullptr : FindPool(key);
    if (other != nullptr) others.push_back(other);
  }
  return others;
}

BlockHeap::Run BlockHeap::FindTakeOver(const Pool& pool, Bytes size,
                                       const BusyPlace* busy) const {
  const bool unmapped_too = busy != nullptr;
  const Bytes handle =
      table_.region(/*evictable=*/true, pool.key().kind).handle_bytes;
  std::vector<const Block*> others;
  for (const Pool* other : OtherClasses(pool)) {
    other->free_blocks().ForEach(
        [&](const FreeKey& free) {
          others.push_back(free.block);
          return true;
        },
        handle);
    if (!unmapped_too) continue;
    const auto& unmapped = other->unmapped_blocks();
    others.insert(others.end(), unmapped.begin(), unmapped.end());
  }
  // In address order: what lies in a run that was looked at is not looked at
  // again.
  std::sort(others.begin(), others.end(), ByAddress());
  Run best;
  Bytes most = 0, fewest = 0;  // of the best: its length, what it takes
  Address seen = 0;
  for (const Block* block : others) {
    if (block->end() <= seen) continue;
    const Run run = RunAround(pool, *block, unmapped_too);
    seen = std::max(seen, run.hi);
    if (run.bytes() < size) continue;
    const Run wanted{run.lo, run.lo + size};
    const Bytes handles = HandlesFor(pool, wanted);
    if (best.bytes() != 0 &&
        (handles > fewest || (handles == fewest && run.bytes() >= most))) {
      continue;
    }
    if (unmapped_too && (*busy)(wanted.lo, wanted.hi) != 0) continue;
    best = wanted;
    most = run.bytes();
    fewest = handles;
  }
  return best;
}

Bytes BlockHeap::HandlesFor(const Pool& pool, Run run) const {
  Bytes bytes = 0, handle = 0;
  for (Address at = run.lo; at < run.hi;) {
    const Block* block = BlockAt(at);
    const Bytes inside = std::min(block->end(), run.hi) - at;
    handle = block->segment->region->handle_bytes;
    if (block->segment->pool != &pool || block->state != BlockState::kFree) {
      bytes += inside;
    }
    at += inside;
  }
  return bytes == 0 ? 0 : RoundUp(bytes, handle);
}

void BlockHeap::TakeOver(Pool& pool, Run run) {
  const HandleRegion& region = *BlockAt(run.lo)->segment->region;
  const Address end =
      region.base + RoundUp(run.hi - region.base, region.handle_bytes);
  for (Address at = run.lo; at < run.hi;) {
    Block* block = BlockAt(at);
    const Address hi = std::min(block->end(), end);
    if (block->segment->pool != &pool) ChangePool(block, at, hi, pool);
    at = hi;
  }
  // What was the pool's already may lie in several segments too.
  while (true) {
    Segment& segment = *BlockAt(run.lo)->segment;
    if (segment.end() >= run.hi) break;
    JoinSegments(segment, *segments_.find(segment.end())->second);
  }
  // Cutting comes before joining: a peak in between was nobody's.
  stats_.segment.For(region.kind, [](Stat& s) { s.Move(0); });
}

void BlockHeap::ChangePool(Block* block, Address lo, Address hi, Pool& pool) {
  Pool& owner = *block->segment->pool;
  HandleRegion& region = *block->segment->region;
  owner.Unfile(block);
  if (block->address < lo) {
    Block* rest = Split(block, lo - block->address);
    owner.File(block);
    block = rest;
  }
  if (block->end() > hi) owner.File(Split(block, hi - lo));
  if (block->segment->base < lo) CutSegment(*block->segment, lo);
  if (block->segment->end() > hi) CutSegment(*block->segment, hi);
  Segment* const segment = block->segment;

  auto& from = owner.segments();
  const auto held = std::find_if(from.begin(), from.end(), [&](const auto& s) {
    return s.get() == segment;
  });
  pool.segments().push_back(std::move(*held));
  from.erase(held);
  segment->pool = &pool;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    region.entries[i].ForgetIntervals();  // of what lay here before
  }
  NoteStays(*segment, !pool.evictable());
  pool.File(block);
  JoinNeighbours(lo);
}

void BlockHeap::NoteStays(const Segment& segment, bool stays) {
  HandleRegion& region = *segment.region;
  if (!region.evictable) return;
  for (std::uint64_t i = region.IndexOf(segment.base);
       region.AddressOf(i) < segment.end(); ++i) {
    if (region.entries[i].stays.load() != stays) {
      region.entries[i].stays.store(stays);
    }
  }
}

void BlockHeap::CutSegment(Segment& segment, Address at) {
  HandleRegion& region = *segment.region;
  Block* const first = BlockAt(at);
  first->prev->next = nullptr;
  first->prev = nullptr;
  // The shorter half becomes the new segment: each of its blocks and handles is
  // looked at.
  auto cut = std::make_unique<Segment>(segment);
  const bool is_left = at - segment.base < segment.end() - at;
  Segment& left = is_left ? *cut : segment;
  Segment& right = is_left ? segment : *cut;
  right.bytes = segment.end() - at;
  left.bytes = at - segment.base;
  right.base = at;
  right.first = first;
  for (Block* b = cut->first; b != nullptr; b = b->next) b->segment = cut.get();
  cut->mapped = 0;
  for (std::uint64_t i = region.IndexOf(cut->base);
       region.AddressOf(i) < cut->end(); ++i) {
    if (region.entries[i].state.load() != HandleState::kUnmapped) {
      ++cut->mapped;
    }
  }
  segment.mapped -= cut->mapped;
  if (segment.mapped > 0 && cut->mapped > 0) {
    stats_.segment.For(region.kind, [](Stat& s) { ++s.current; });
  }
  segments_[left.base] = &left;
  segments_[right.base] = &right;
  history_.CutSegment(left.base, right.base);
  segment.pool->segments().push_back(std::move(cut));
}

void BlockHeap::JoinSegments(Segment& left, Segment& right) {
  Pool& pool = *left.pool;
  Segment& longer = left.bytes < right.bytes ? right : left;
  Segment& shorter = left.bytes < right.bytes ? left : right;
  Block* last = BlockAt(right.base - 1);
  Block* first = right.first;
  for (Block* b = shorter.first; b != nullptr; b = b->next)
    b->segment = &longer;
  last->next = first;
  first->prev = last;
  if (IsFiled(last->state) && last->state == first->state) {
    pool.Unfile(last);
    pool.Unfile(first);
    JoinNext(last);
    pool.File(last);
  }
  if (left.mapped > 0 && right.mapped > 0) {
    stats_.segment.For(left.region->kind, [](Stat& s) { --s.current; });
  }
  segments_.erase(right.base);
  history_.JoinSegments(left.base, right.base);
  longer.first = left.first;
  longer.base = left.base;
  longer.bytes = left.bytes + right.bytes;
  longer.mapped = left.mapped + right.mapped;
  segments_[longer.base] = &longer;
  std::erase_if(pool.segments(),
                [&](const auto& s) { return s.get() == &shorter; });
}

void BlockHeap::JoinNeighbours(Address base) {
  const auto join = [&](Segment& left, Segment& right) {
    if (left.end() == right.base && left.pool == right.pool &&
        left.region == right.region) {
      JoinSegments(left, right);
    }
  };
  const auto at = segments_.find(base);
  if (const auto next = std::next(at); next != segments_.end()) {
    join(*at->second, *next->second);
  }
  if (at != segments_.begin()) join(*std::prev(at)->second, *at->second);
}

}  // namespace stratalloc
