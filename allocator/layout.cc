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
  if (pool == nullptr) {
    pool = std::make_unique<Pool>(key);
    streams_of_mallocs_.insert(key.stream);
  }
  return *pool;
}

Segment* DeviceAllocator::AddSegmentLocked(Pool& pool, Bytes size) {
  // Its memory comes from elsewhere, and without the lock (FetchPlain).
  if (SourceLocked(pool.key()) != nullptr) return nullptr;
  HandleRegion& region = table_.region(
      options_.tiering && !pool.key().owner.is_private(), pool.key().kind);
  const Bytes wanted = RoundUp(
      std::max({size, options_.segment_least, capacity_ / kSegmentFraction}),
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
  NoteStaysLocked(*segment, !pool.evictable());
  pool.File(block);
  pool.segments().push_back(std::move(segment));
  return pool.segments().back().get();
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

void DeviceAllocator::ForgetSegmentLocked(const Segment& segment) {
  Block* only = segment.first;
  segment.pool->Unfile(only);
  blocks_.Erase(only->address);
  segments_.erase(segment.base);
  history_.ForgetSegment(segment.base);
  DropBlockLocked(only);
}

void DeviceAllocator::DropEmptySegmentsLocked() {
  EmptyBinsLocked();
  for (auto& [key, pool] : pools_) {
    std::erase_if(pool->segments(), [&](const auto& segment) {
      mutex_.AssertHeld();
      const Block* only = segment->first;
      if (segment->plain || segment->mapped != 0 || only->next != nullptr ||
          only->state != BlockState::kUnmapped || !DropKeptLocked(*segment)) {
        return false;
      }
      ForgetSegmentLocked(*segment);
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

void DeviceAllocator::JoinNextLocked(Block* block) {
  Block* next = block->next;
  block->size += next->size;
  block->next = next->next;
  if (next->next != nullptr) next->next->prev = block;
  blocks_.Erase(next->address);
  DropBlockLocked(next);
}

Block* DeviceAllocator::MergeBackLocked(Block* block) {
  Block* prev = block->prev;
  if (prev == nullptr || prev->state != block->state) return block;
  block->segment->pool->Unfile(prev);
  JoinNextLocked(prev);
  return prev;
}

Block* DeviceAllocator::MergeLocked(Block* block) {
  if (Block* next = block->next;
      next != nullptr && next->state == block->state) {
    block->segment->pool->Unfile(next);
    JoinNextLocked(block);
  }
  return MergeBackLocked(block);
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
        block = MergeBackLocked(block);
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

Address DeviceAllocator::FindRunLocked(const Pool& pool, Bytes size,
                                       const StreamsIdle& idle, Bytes* needed) {
  const std::uint64_t own = OwnBitLocked(pool.key().stream);
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
      const Address busy = BusyPlaceLocked(start, start + size, own, idle);
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

Address DeviceAllocator::BusyPlaceLocked(Address lo, Address hi,
                                         std::uint64_t own,
                                         const StreamsIdle& idle) {
  HandleRegion& region = *BlockAtLocked(lo)->segment->region;
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
    // Of a life that is over: what moved elsewhere left the segment empty.
    if (segment.mapped == 0) history_.ForgetSegment(segment.base);
    segment.mapped += wanted.size();
    stats_.reserved_bytes.For(region.kind, [&](Stat& s) {
      s.Increase(static_cast<std::int64_t>(needed));
    });
    stats_.num_device_alloc += static_cast<std::int64_t>(wanted.size());
    RecordMappedLocked(TraceAction::kSegmentMap, wanted, nullptr);
    if (segment.mapped == wanted.size() && !wanted.empty()) {
      stats_.segment.For(region.kind, [](Stat& s) { s.Increase(1); });
    }
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
  RefileLocked(
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
  Segment& segment = SegmentOfLocked(handle);
  entry.state.store(HandleState::kUnmapped);
  --segment.mapped;
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
