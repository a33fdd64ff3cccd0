// SPDX-License-Identifier: Apache-2.0
#include "allocator/explain/heap_copy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/blocks/unmanaged_segments.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

// An empty table for the same addresses.
Result<HandleTable> LikeTable(HandleTable& table) {
  const HandleRegion& small = table.region(true, PoolKind::kSmall);
  const HandleRegion& large = table.region(true, PoolKind::kLarge);
  if (small.bytes == 0) return HandleTable();  // no virtual memory
  return HandleTable::At(table.base(), small.bytes, small.handle_bytes,
                         large.handle_bytes);
}

// Of the whole handles in a free block.
template <typename F>
void ForEachFreeHandle(const FreeKey& free, F&& f) {
  HandleRegion& region = *free.block->segment->region;
  const Address lo =
      region.base + RoundUp(free.address - region.base, region.handle_bytes);
  const Address hi =
      region.base +
      RoundDown(free.address + free.size - region.base, region.handle_bytes);
  for (Address at = lo; at < hi; at += region.handle_bytes) {
    f(HandleRef{&region, region.IndexOf(at)});
  }
}

}  // namespace

HeapCopy::HeapCopy(HandleTable table, Bytes used, Rules rules)
    : table_(table),
      heap_(table_, stats_, history_),
      used_(used),
      rules_(std::move(rules)) {}

Result<std::unique_ptr<HeapCopy>> HeapCopy::Make(const BlockHeap& heap,
                                                 HandleTable& table, Bytes used,
                                                 const Rules& rules) {
  STRATALLOC_ASSIGN_OR_RETURN(const HandleTable like, LikeTable(table));
  std::unique_ptr<HeapCopy> copy(new HeapCopy(like, used, rules));
  copy->heap_.CopyFrom(heap);
  copy->CopyUnmanagedRegions();
  return copy;
}

void HeapCopy::CopyUnmanagedRegions() {
  for (const auto& [base, segment] : heap_.segments()) {
    if (!segment->unmanaged) continue;
    const HandleRegion& from = *segment->region;
    UnmanagedRegion& to =
        *unmanaged_.emplace_back(std::make_unique<UnmanagedRegion>());
    to.region = from;
    to.region.entries = &to.entry;
    to.entry.state.store(from.entries[0].state.load());
    to.entry.stays.store(from.entries[0].stays.load());
    segment->region = &to.region;
  }
}

Bytes HeapCopy::Releasable(BlockHeap::Run but) const {
  Bytes bytes = 0;
  for (const auto& [key, pool] : heap_.pools()) {
    if (!rules_.may_move(key.owner)) continue;
    pool->free_blocks().ForEach([&](const FreeKey& free) {
      ForEachFreeHandle(free, [&](HandleRef handle) {
        const Address at = handle.address();
        const bool in_run = at + handle.bytes() > but.lo && at < but.hi;
        if (!in_run) bytes += handle.bytes();
      });
      return true;
    });
  }
  return bytes;
}

Bytes HeapCopy::Unmapped(BlockHeap::Run run) {
  Bytes bytes = 0;
  Address at = run.lo;
  while (at < run.hi) {
    const HandleRef handle = table_.RefOf(at);
    if (handle.state() == HandleState::kUnmapped) bytes += handle.bytes();
    at = handle.address() + handle.bytes();
  }
  return bytes;
}

Bytes HeapCopy::HandlesOf(PoolKind kind, Bytes size) {
  const Bytes handle = table_.region(true, kind).handle_bytes;
  return handle == 0 ? size : RoundUp(size, handle);  // 0: unmanaged memory
}

const Block* HeapCopy::FindFree(const Wish& wish) {
  const Block* own =
      UnmanagedSegments::BestFit(heap_.PoolOf(wish.key), wish.size);
  if (own != nullptr || wish.key.owner.is_private()) return own;
  for (const auto& [key, pool] : heap_.pools()) {
    PoolKey lender = wish.key;
    lender.owner = key.owner;
    lender.lifetime = LifetimeClass::kTransient;
    if (key != lender || !key.owner.is_private() || !rules_.lends(key.owner)) {
      continue;
    }
    if (const Block* lent = UnmanagedSegments::BestFit(*pool, wish.size)) {
      return lent;
    }
  }
  return nullptr;
}

// As LiveBlocks::HandedOutOf.
Bytes HeapCopy::HandedOut(const Wish& wish, PoolId owner, Bytes block,
                          bool unmanaged) const {
  const bool whole =
      rules_.unsplit(owner) ||
      (unmanaged && wish.size >= Settings::Get().max_split_size());
  return whole ? block : wish.size;
}

// As Placement::Search, with the whole of the ladder's memory.
HeapCopy::Found HeapCopy::Serves(const Wish& wish, Bytes limit) {
  const PoolId owner = wish.key.owner;
  if (const Block* free = FindFree(wish); free != nullptr) {
    const Segment& segment = *free->segment;
    return {true, HandedOut(wish, segment.pool->key().owner, free->size,
                            segment.unmanaged)};
  }
  Pool& pool = heap_.PoolOf(wish.key);
  const bool meets =
      wish.classes_meet && !owner.is_private() && wish.unmanaged == 0;
  const BlockHeap::BusyPlace busy = [](Address, Address) { return Address{0}; };
  const BlockHeap::Run free =
      meets ? heap_.FindTakeOver(pool, wish.size) : BlockHeap::Run{};
  if (free.bytes() > 0) return {true, wish.size};
  BlockHeap::Run run;
  Bytes needed = wish.unmanaged;
  if (needed == 0) {
    const Address start = heap_.FindRun(pool, wish.size, busy, &needed);
    run = {start, start == 0 ? 0 : start + wish.size};
    if (start == 0 && meets) run = heap_.FindTakeOver(pool, wish.size, &busy);
    needed =
        run.bytes() > 0 ? Unmapped(run) : HandlesOf(wish.key.kind, wish.size);
  }
  const Bytes stays = used_ - std::min(used_, Releasable(run));
  if (stays + needed > limit) return {.lacking = stays + needed - limit};
  return {true,
          HandedOut(wish, owner,
                    wish.unmanaged != 0 ? wish.unmanaged
                                        : HandlesOf(wish.key.kind, wish.size),
                    wish.unmanaged != 0)};
}

HeapCopy::Found HeapCopy::HoldsBeside(Bytes handles, Bytes limit) const {
  const Bytes needed = used_ - std::min(used_, Releasable({})) + handles;
  if (needed > limit) return {.lacking = needed - limit};
  return {.served = true};
}

void HeapCopy::MakeFree(Block* block) {
  Segment& segment = *block->segment;
  const Address lo = block->address;
  // Its neighbour may be one block with it now.
  const Address hi = block->next != nullptr ? block->next->end() : block->end();
  block->state = BlockState::kFree;
  segment.pool->File(block);
  heap_.Refile(segment, lo, hi);
}

void HeapCopy::CompletePending() {
  std::vector<Block*> pending;
  for (const auto& [base, segment] : heap_.segments()) {
    for (Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state == BlockState::kPending) pending.push_back(b);
    }
  }
  for (Block* block : pending) MakeFree(block);
}

void HeapCopy::Evict(Address handle) {
  const HandleRef ref = table_.RefOf(handle);
  if (!IsOnDevice(ref.state())) return;
  ref.entry().state.store(HandleState::kHost);
  used_ -= std::min(used_, ref.bytes());
  heap_.NoteLeft();
  heap_.Refile(ref);
}

void HeapCopy::Release(PoolId only, Bytes wanted) {
  Bytes bytes = 0;
  std::vector<HandleRef> going;
  for (const auto& [key, pool] : heap_.pools()) {
    if (only.is_private() ? key.owner != only : !rules_.may_move(key.owner)) {
      continue;
    }
    pool->free_blocks().ForEach([&](const FreeKey& free) {
      ForEachFreeHandle(free, [&](HandleRef handle) {
        if (bytes >= wanted) return;
        bytes += handle.bytes();
        going.push_back(handle);
      });
      return bytes < wanted;
    });
  }
  for (const HandleRef handle : going) {
    Segment& segment = heap_.SegmentOf(handle);
    // Of what is unmanaged the state is the heap's own that is copied.
    if (segment.unmanaged) {
      heap_.NoteUnmapped(segment, 1);
      heap_.DropSegments(*segment.pool,
                         [&](Segment& one) { return &one == &segment; });
    } else {
      handle.entry().state.store(HandleState::kUnmapped);
      heap_.NoteUnmapped(segment, 1);
      heap_.Refile(handle);
    }
  }
  used_ -= std::min(used_, bytes);
}

void HeapCopy::Free(Address block) {
  if (Block* found = heap_.Find(block); found != nullptr) MakeFree(found);
}

}  // namespace stratalloc
