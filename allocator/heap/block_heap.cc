// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/block_heap.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {

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

// Places that are compared before memory grows.
constexpr int kRunsLookedAt = 64;

// What [start, start + size) lacks of memory, if the free space that begins
// with `first` reaches that far.
std::optional<Bytes> Missing(const Block& first, Address start, Bytes size) {
  const Address end = start + size;
  const HandleRegion& region = *first.segment->region;
  Bytes missing = 0;
  for (const Block* b = &first;
       b != nullptr &&
       (b->state == BlockState::kFree || b->state == BlockState::kUnmapped);
       b = b->next) {
    if (b->state == BlockState::kUnmapped && b->end() > start) {
      missing += std::min(b->end(), end) - std::max(b->address, start);
    }
    if (b->end() >= end) return RoundUp(missing, region.handle_bytes);
  }
  return std::nullopt;
}

}  // namespace

BlockHeap::BlockHeap(HandleTable& table, SegmentStats& stats, History& history)
    : table_(table),
      stats_(stats),
      history_(history),
      blocks_(table.base(), table.end()) {
  for (const bool evictable : {true, false}) {
    for (const PoolKind kind : {PoolKind::kSmall, PoolKind::kLarge}) {
      const HandleRegion& region = table_.region(evictable, kind);
      if (region.bytes == 0) continue;
      // Whole handles only: a region need not be a multiple of its handle.
      SpaceOf(region).Add(region.base,
                          RoundDown(region.bytes, region.handle_bytes));
    }
  }
}

BlockHeap::~BlockHeap() {
  for (auto& [base, segment] : segments_) {
    for (Block* block = segment->first; block != nullptr;) {
      delete std::exchange(block, block->next);
    }
  }
  while (spare_blocks_ != nullptr) {
    delete std::exchange(spare_blocks_, spare_blocks_->bin_next);
  }
}

Extents& BlockHeap::SpaceOf(const HandleRegion& region) {
  return free_space_[(region.evictable ? 0 : 2) +
                     static_cast<int>(region.kind)];
}

Pool* BlockHeap::FindPool(const PoolKey& key) const {
  const auto found = pools_.find(key);
  return found == pools_.end() ? nullptr : found->second.get();
}

Pool& BlockHeap::PoolOf(const PoolKey& key) {
  std::unique_ptr<Pool>& pool = pools_[key];
  if (pool == nullptr) pool = std::make_unique<Pool>(key);
  return *pool;
}

void BlockHeap::ErasePoolsOf(PoolId owner) {
  std::erase_if(pools_, [&](const auto& pool) {
    if (pool.first.owner != owner) return false;
    STRATALLOC_CHECK(pool.second->segments().empty(),
                     "a private pool keeps no mappings, so it can go");
    return true;
  });
}

Block* BlockHeap::NewBlock() {
  Block* block = spare_blocks_;
  if (block == nullptr) return new Block;
  spare_blocks_ = block->bin_next;
  *block = Block{};
  return block;
}

void BlockHeap::DropBlock(Block* block) {
  block->bin_next = std::exchange(spare_blocks_, block);
}

Segment& BlockHeap::Place(std::unique_ptr<Segment> segment, Pool& pool,
                          BlockState state) {
  Block* block = NewBlock();
  block->segment = segment.get();
  block->address = segment->base;
  block->size = segment->bytes;
  block->state = state;
  segment->pool = &pool;
  segment->first = block;
  blocks_.Insert(block);
  segments_[segment->base] = segment.get();
  NoteStays(*segment, !pool.evictable());
  pool.File(block);
  pool.segments().push_back(std::move(segment));
  return *pool.segments().back();
}

Segment* BlockHeap::AddSegment(Pool& pool, HandleRegion& region, Bytes bytes) {
  const std::optional<Address> base = SpaceOf(region).TakeLow(bytes);
  if (!base) return nullptr;
  auto segment = std::make_unique<Segment>();
  segment->region = &region;
  segment->base = *base;
  segment->bytes = bytes;
  return &Place(std::move(segment), pool, BlockState::kUnmapped);
}

Segment& BlockHeap::AddUnmanagedSegment(Pool& pool, HandleRegion& region) {
  auto segment = std::make_unique<Segment>();
  segment->region = &region;
  segment->base = region.base;
  segment->bytes = region.bytes;
  segment->unmanaged = true;
  Segment& placed = Place(std::move(segment), pool, BlockState::kFree);
  NoteMapped(placed, 1);
  return placed;
}

void BlockHeap::Forget(const Segment& segment) {
  Block* only = segment.first;
  segment.pool->Unfile(only);
  blocks_.Erase(only->address);
  segments_.erase(segment.base);
  history_.ForgetSegment(segment.base);
  DropBlock(only);
}

void BlockHeap::DropSegments(Pool& pool,
                             const std::function<bool(Segment&)>& gone) {
  std::erase_if(pool.segments(), [&](const auto& segment) {
    const Block* only = segment->first;
    if (segment->mapped != 0 || only->next != nullptr || !gone(*segment)) {
      return false;
    }
    Forget(*segment);
    if (!segment->unmanaged) {
      SpaceOf(*segment->region).Add(segment->base, segment->bytes);
    }
    return true;
  });
}

void BlockHeap::NoteMapped(Segment& segment, std::uint64_t handles) {
  // Of a life that is over: what moved elsewhere left the segment empty.
  if (segment.mapped == 0) history_.ForgetSegment(segment.base);
  segment.mapped += handles;
  if (segment.mapped == handles && handles != 0) {
    stats_.segment.For(segment.region->kind, [](Stat& s) { s.Increase(1); });
  }
}

void BlockHeap::NoteUnmapped(Segment& segment, std::uint64_t handles) {
  segment.mapped -= handles;
  if (segment.mapped == 0 && handles != 0) {
    stats_.segment.For(segment.region->kind, [](Stat& s) { s.Decrease(1); });
  }
}

LiveCounters::OnDevice BlockHeap::CountOnDevice(const Block& block) {
  LiveCounters::OnDevice here{0, 0};
  Address at = block.address;
  ForEachHandleOf(block, [&](HandleRef handle, Bytes bytes) {
    if (!IsAway(handle.entry().state.load())) {
      here.size += bytes;
      const Bytes before = at - block.address;
      here.requested += block.requested > before
                            ? std::min(bytes, block.requested - before)
                            : 0;
    }
    at += bytes;
  });
  return here;
}

Block* BlockHeap::Split(Block* block, Bytes at) {
  STRATALLOC_CHECK(at > 0 && at < block->size, "split outside the block");
  Block* rest = NewBlock();
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

void BlockHeap::JoinNext(Block* block) {
  Block* next = block->next;
  block->size += next->size;
  block->next = next->next;
  if (next->next != nullptr) next->next->prev = block;
  blocks_.Erase(next->address);
  DropBlock(next);
}

Block* BlockHeap::MergeBack(Block* block) {
  Block* prev = block->prev;
  if (prev == nullptr || prev->state != block->state) return block;
  block->segment->pool->Unfile(prev);
  JoinNext(prev);
  return prev;
}

Block* BlockHeap::Merge(Block* block) {
  if (Block* next = block->next;
      next != nullptr && next->state == block->state) {
    block->segment->pool->Unfile(next);
    JoinNext(block);
  }
  return MergeBack(block);
}

Block* BlockHeap::FileFront(Block* block) {
  const HandleRegion& region = *block->segment->region;
  const std::uint64_t first = region.IndexOf(block->address);
  const BlockState state = FreeStateOf(region.entries[first].state.load());
  std::uint64_t index = first + 1;
  while (region.AddressOf(index) < block->end() &&
         FreeStateOf(region.entries[index].state.load()) == state) {
    ++index;
  }
  Block* rest = nullptr;
  if (region.AddressOf(index) < block->end()) {
    rest = Split(block, region.AddressOf(index) - block->address);
  }
  block->state = state;
  // Merging forward is left to the neighbour's own turn: `rest` still has its
  // old state.
  block = MergeBack(block);
  block->segment->pool->File(block);
  return rest;
}

void BlockHeap::Refile(Segment& segment, Address lo, Address hi) {
  Block* block = BlockAt(lo);
  while (block != nullptr && block->address < hi) {
    Block* next = block->next;
    if (IsFiled(block->state)) {
      segment.pool->Unfile(block);
      while (block != nullptr) block = FileFront(block);
    }
    block = next;
  }
  // The last piece and the first block beyond the range may agree now.
  if (Block* last = hi < segment.end() ? BlockAt(hi - 1) : nullptr;
      last != nullptr && IsFiled(last->state) && last->next != nullptr &&
      last->next->state == last->state) {
    segment.pool->Unfile(last);
    segment.pool->File(Merge(last));
  }
}

void BlockHeap::Refile(HandleRef handle) {
  Refile(SegmentOf(handle), handle.address(),
         handle.address() + handle.bytes());
}

Block* BlockHeap::BlockAt(Address address) const {
  Block* block = blocks_.FindBelow(address);
  return block != nullptr && address < block->end() ? block : nullptr;
}

Segment& BlockHeap::SegmentOf(HandleRef handle) const {
  auto it = segments_.upper_bound(handle.address());
  STRATALLOC_CHECK(it != segments_.begin(), "handle outside every segment");
  Segment& segment = *std::prev(it)->second;
  STRATALLOC_CHECK(handle.address() < segment.end(),
                   "handle outside every segment");
  return segment;
}

Address BlockHeap::FindRun(const Pool& pool, Bytes size,
                           const BusyPlace& busy_place, Bytes* needed) const {
  Address best = 0;
  Bytes least = 0;  // to be mapped there
  int looked_at = 0;
  for (const Block* unmapped : pool.unmapped_blocks()) {
    if (best != 0 && ++looked_at == kRunsLookedAt) break;
    const Block* first = unmapped;
    if (first->prev != nullptr && first->prev->state == BlockState::kFree) {
      first = first->prev;
    }
    Address start = first->address;
    for (;;) {
      const std::optional<Bytes> missing = Missing(*first, start, size);
      if (!missing || (best != 0 && *missing >= least)) break;
      const Address busy = busy_place(start, start + size);
      if (busy == 0) {
        best = start;
        least = *missing;
        break;
      }
      start = busy + unmapped->segment->region->handle_bytes;
    }
  }
  if (best != 0) *needed = least;
  return best;
}

std::set<Address> BlockHeap::HandlesUnder(
    const std::vector<Address>& blocks) const {
  std::set<Address> handles;
  for (const Address address : blocks) {
    if (table_.RegionOf(address) == nullptr) continue;
    const Block* block = Find(address);
    if (block == nullptr || block->state != BlockState::kAllocated) continue;
    ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
      handles.insert(handle.address());
    });
  }
  return handles;
}

}  // namespace stratalloc
