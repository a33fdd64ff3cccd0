// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap_copy.h"

#include <algorithm>
#include <utility>

#include "allocator/unmanaged_segments.h"

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

}  // namespace

HeapCopy::HeapCopy(HandleTable table, Bytes used, MayMove may_move)
    : table_(table),
      heap_(table_, stats_, history_),
      used_(used),
      may_move_(std::move(may_move)) {}

Result<std::unique_ptr<HeapCopy>> HeapCopy::Make(const BlockHeap& heap,
                                                 HandleTable& table, Bytes used,
                                                 const MayMove& may_move) {
  STRATALLOC_ASSIGN_OR_RETURN(const HandleTable like, LikeTable(table));
  std::unique_ptr<HeapCopy> copy(new HeapCopy(like, used, may_move));
  copy->heap_.CopyFrom(heap);
  return copy;
}

Bytes HeapCopy::Releasable(BlockHeap::Run but) const {
  Bytes bytes = 0;
  for (const auto& [key, pool] : heap_.pools()) {
    if (!may_move_(*pool)) continue;
    pool->free_blocks().ForEach([&](const FreeKey& free) {
      const HandleRegion& region = *free.block->segment->region;
      const Address lo = region.base + RoundUp(free.address - region.base,
                                               region.handle_bytes);
      const Address hi =
          region.base + RoundDown(free.address + free.size - region.base,
                                  region.handle_bytes);
      for (Address at = lo; at < hi; at += region.handle_bytes) {
        const bool in_run = at + region.handle_bytes > but.lo && at < but.hi;
        if (!in_run) bytes += region.handle_bytes;
      }
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

// As Placement::Search, with the whole of the ladder's memory.
bool HeapCopy::Serves(const PoolKey& key, Bytes size, Bytes limit,
                      bool classes_meet, Bytes* lacking) {
  *lacking = 0;
  Pool& pool = heap_.PoolOf(key);
  if (UnmanagedSegments::BestFit(pool, size) != nullptr) return true;
  const bool meets = classes_meet && !key.owner.is_private();
  const BlockHeap::BusyPlace busy = [](Address, Address) { return Address{0}; };
  const BlockHeap::Run free =
      meets ? heap_.FindTakeOver(pool, size) : BlockHeap::Run{};
  if (free.bytes() > 0) return true;
  Bytes needed = 0;
  Address start = heap_.FindRun(pool, size, busy, &needed);
  BlockHeap::Run run{start, start == 0 ? 0 : start + size};
  if (start == 0 && meets) run = heap_.FindTakeOver(pool, size, &busy);
  needed = run.bytes() > 0 ? Unmapped(run) : HandlesOf(key.kind, size);
  const Bytes stays = used_ - std::min(used_, Releasable(run));
  if (stays + needed <= limit) return true;
  *lacking = stays + needed - limit;
  return false;
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
  ref.entry().state.store(HandleState::kHost);
  used_ -= std::min(used_, ref.bytes());
  heap_.NoteLeft();
  heap_.Refile(ref);
}

void HeapCopy::Free(Address block) {
  if (Block* found = heap_.Find(block); found != nullptr) MakeFree(found);
}

}  // namespace stratalloc
