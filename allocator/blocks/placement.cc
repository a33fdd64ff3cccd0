// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/placement.h"

#include <algorithm>
#include <utility>

#include "allocator/base/check.h"

namespace stratalloc {

Pool& Placement::PoolOf(const PoolKey& key) {
  if (Pool* pool = p_.heap.FindPool(key)) return *pool;
  p_.private_pools.NoteStream(key.stream);
  return p_.heap.PoolOf(key);
}

// ---- searches ---------------------------------------------------------------

Block* Placement::FindCached(Pool& pool, Bytes size) {
  // Best fit means the best of all: a block in a bin may fit better than any
  // that was given back.
  if (pool.bins().largest() > size) p_.blocks.EmptyBins(pool);
  if (Block* block = UnmanagedSegments::BestFit(pool, size)) return block;
  // Before memory grows, what the bins keep apart is merged and counts again.
  if (pool.bins().empty()) return nullptr;
  p_.blocks.EmptyBins(pool);
  return UnmanagedSegments::BestFit(pool, size);
}

Block* Placement::Borrow(PoolKey key, Bytes size) {
  if (key.owner.is_private()) return nullptr;
  key.lifetime = LifetimeClass::kTransient;
  for (const auto& [id, lender] : p_.private_pools.all()) {
    if (!lender.use_on_oom) continue;
    key.owner = id;
    const Pool* pool = p_.heap.FindPool(key);
    if (pool == nullptr) continue;
    if (Block* block = UnmanagedSegments::BestFit(*pool, size)) return block;
  }
  return nullptr;
}

Placement::Found Placement::Search(Pool& pool, Bytes size, Bytes limit) {
  Found found{.block = FindCached(pool, size), .lacking = size};
  if (found.block != nullptr || limit == 0 ||
      p_.unmanaged.SourceOf(pool.key()) != nullptr) {
    return found;
  }
  // Free handles of other classes where they lie cost nothing, and are asked
  // for first while the limit is far.
  const BlockHeap::Run free = FindTakeOver(pool, size);
  const Bytes others = p_.heap.HandlesFor(pool, free);
  if (free.bytes() > 0 && p_.pages.used_bytes() + others <= limit) {
    found.block = TakeOver(pool, free);
    return found;
  }
  const StreamsIdle idle = p_.captures.AskStreams();
  const std::uint64_t own = p_.captures.OwnBit(pool.key().stream);
  const BlockHeap::BusyPlace busy = [&](Address lo, Address hi) {
    return p_.free_handles.BusyPlace(lo, hi, own, idle);
  };
  Bytes needed = ~Bytes{0};  // a segment of its own
  Address start = p_.heap.FindRun(pool, size, busy, &needed);
  BlockHeap::Run place;  // what others have cut off and left empty
  if (start == 0) {
    place = FindTakeOver(pool, size, &busy);
    if (place.bytes() > 0) needed = p_.heap.HandlesFor(pool, place);
  }
  // Near it whole handles may be more than growth would need, whose first or
  // last one is partly the pool's: others would be refused for the difference.
  if (free.bytes() > 0 && others <= needed) {
    found.block = TakeOver(pool, free);
    return found;
  }
  if (start == 0 && place.bytes() > 0) {
    p_.heap.TakeOver(pool, place);
    start = place.lo;
  }
  MapRun(pool, start, size, limit, idle, &found);
  return found;
}

BlockHeap::Run Placement::FindTakeOver(const Pool& pool, Bytes size,
                                       const BlockHeap::BusyPlace* busy) {
  // Without tiering there is one class.
  if (!options_.tiering || pool.key().owner.is_private()) return {};
  for (Pool* other : p_.heap.OtherClasses(pool)) p_.blocks.EmptyBins(*other);
  return p_.heap.FindTakeOver(pool, size, busy);
}

Block* Placement::TakeOver(Pool& pool, BlockHeap::Run free) {
  p_.heap.TakeOver(pool, free);
  Block* block = p_.heap.BlockAt(free.lo);
  STRATALLOC_CHECK(block->end() >= free.hi,
                   "a run that was taken over is one free block");
  return block;
}

void Placement::MapRun(Pool& pool, Address start, Bytes size, Bytes limit,
                       const StreamsIdle& idle, Found* found) {
  const auto new_place = [&] {
    const Segment* segment = AddSegment(pool, size);
    start = segment == nullptr ? 0 : segment->base;
    return start != 0;
  };
  if (start == 0 && !new_place()) return;
  PageStore::Mapped mapped = MoveAndMap(start, size, limit, idle, found);
  if (mapped == PageStore::Mapped::kPlaceBusy) {
    // Two positions there keep the same memory: a new place has none.
    if (!new_place()) return;
    mapped = MoveAndMap(start, size, limit, idle, found);
  }
  if (mapped != PageStore::Mapped::kYes) return;
  Block* block = p_.heap.BlockAt(start);
  STRATALLOC_CHECK(block != nullptr && block->state == BlockState::kFree &&
                       block->end() >= start + size,
                   "a mapped run is one free block");
  found->block = block;
}

PageStore::Mapped Placement::MoveAndMap(Address start, Bytes size, Bytes limit,
                                        const StreamsIdle& idle, Found* found) {
  Segment& segment = *p_.heap.BlockAt(start)->segment;
  HandleRegion& region = *segment.region;
  const Address end = start + size;
  // Free handles of any pool move here before the driver is asked for more.
  p_.free_handles.MoveTo(segment, start, end, idle);
  PageStore::Answer answer = p_.pages.Map(
      region, start, end, limit, FreeHandles::KeepsMappings(segment),
      {p_.captures.OwnBit(segment.pool->key().stream), idle});
  if (answer.error) found->error = std::move(answer.error);
  if (answer.lacking > 0) found->lacking = answer.lacking;
  if (answer.mapped == PageStore::Mapped::kYes) {
    p_.heap.NoteMapped(segment, answer.arrived.size());
    p_.stats.Reserve(segment.pool->key().owner, region.kind,
                     answer.arrived.size() * region.handle_bytes);
    p_.stats.num_device_alloc +=
        static_cast<std::int64_t>(answer.arrived.size());
    p_.traces.Mapped(TraceAction::kSegmentMap, answer.arrived,
                     TraceCause::kNone);
  }
  p_.heap.Refile(
      segment,
      RoundDown(start - region.base, region.handle_bytes) + region.base,
      std::min(segment.end(),
               RoundUp(end - region.base, region.handle_bytes) + region.base));
  return answer.mapped;
}

// ---- address space ----------------------------------------------------------

Segment* Placement::AddSegment(Pool& pool, Bytes size) {
  HandleRegion& region = p_.table.region(
      options_.tiering && !pool.key().owner.is_private(), pool.key().kind);
  const Bytes least = RoundUp(size, region.handle_bytes);
  const Bytes wanted =
      RoundUp(std::max(size, options_.segment_bytes), region.handle_bytes);
  Segment* segment = p_.heap.AddSegment(
      pool, region,
      p_.private_pools.IsUnsplit(pool.key().owner) ? least : wanted);
  if (segment != nullptr) return segment;
  DropEmptySegments();
  return p_.heap.AddSegment(pool, region, least);
}

void Placement::DropEmptySegments() {
  p_.blocks.EmptyBins();
  const StreamsIdle idle = p_.captures.AskStreams();
  for (const auto& [key, pool] : p_.heap.pools()) {
    p_.heap.DropSegments(*pool, [&](Segment& segment) {
      return !segment.unmanaged &&
             p_.pages.DropKept(*segment.region, segment.base, segment.end(),
                               idle);
    });
  }
}

void Placement::ForgetPools() {
  const auto all_segments = [&](PoolId id, auto holds) {
    return std::ranges::all_of(p_.heap.pools(), [&](const auto& entry) {
      return entry.first.owner != id ||
             std::ranges::all_of(entry.second->segments(), holds);
    });
  };
  p_.private_pools.Forget([&](PoolId id) {
    if (!id.is_private()) return true;  // those pools are everybody's
    if (!all_segments(id, [](const auto& s) { return s->mapped == 0; })) {
      return false;
    }
    DropEmptySegments();
    // The driver may refuse to unmap what was kept: asked again next time.
    if (!all_segments(id, [](const auto&) { return false; })) return false;
    p_.heap.ErasePoolsOf(id);
    return true;
  });
}

}  // namespace stratalloc
