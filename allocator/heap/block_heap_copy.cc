// SPDX-License-Identifier: Apache-2.0
// BlockHeap: one that is the same as another.
#include <memory>
#include <utility>

#include "allocator/heap/block_heap.h"

namespace stratalloc {

void BlockHeap::CopyFrom(const BlockHeap& other) {
  std::copy(std::begin(other.free_space_), std::end(other.free_space_),
            std::begin(free_space_));
  away_ = other.away_;
  for (const auto& [base, segment] : other.segments_) {
    CopySegment(*segment, PoolOf(segment->pool->key()));
  }
}

void BlockHeap::CopySegment(const Segment& from, Pool& pool) {
  auto segment = std::make_unique<Segment>(from);
  segment->pool = &pool;
  // What is unmanaged has a region of its own, which nobody changes here.
  if (!from.unmanaged) {
    segment->region = table_.RegionOf(from.base);
    ForEachHandleOf(from, [&](HandleRef handle) {
      HandleEntry& entry = table_.RefOf(handle.address()).entry();
      entry.state.store(handle.state());
      entry.stays.store(handle.stays());
    });
  }
  Block* last = nullptr;
  for (const Block* b = from.first; b != nullptr; b = b->next) {
    Block* block = NewBlock();
    block->segment = segment.get();
    block->address = b->address;
    block->size = b->size;
    block->requested = b->requested;
    block->charge = b->charge;
    block->state = b->state;
    block->clock = b->clock;
    block->prev = last;
    (last == nullptr ? segment->first : last->next) = block;
    blocks_.Insert(block);
    pool.File(block);
    last = block;
  }
  segments_[segment->base] = segment.get();
  pool.segments().push_back(std::move(segment));
}

}  // namespace stratalloc
