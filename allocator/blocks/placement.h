// SPDX-License-Identifier: Apache-2.0
// Where memory for a request comes from: what is cached, what the stream's
// other classes have free, free address space that is given memory ("Before
// memory grows" in README.md), and the segments that this space is in.
//
// One search looks, in this order, at: a cached block that fits best; whole
// handles that the stream's other classes have free (take_over.cc); free
// address space that needs memory, as far as that search may take any.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Fails: as PageStore::Map does, and then no memory has come (`Found`); free
// memory may have moved or changed its class.
// Invariant: a block that is found is kFree, filed in its pool, mapped
// throughout and at least as large as was asked.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_PLACEMENT_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_PLACEMENT_H_

#include <optional>

#include "allocator/blocks/free_handles.h"
#include "allocator/blocks/live_blocks.h"
#include "allocator/blocks/unmanaged_segments.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/block_traces.h"
#include "allocator/memory/page_store.h"
#include "allocator/streams/captures.h"
#include "allocator/streams/private_pools.h"

namespace stratalloc {

class Placement {
 public:
  struct Parts {
    HandleTable& table;
    BlockHeap& heap;
    PageStore& pages;
    BlockTraces& traces;
    SegmentStats& stats;
    PrivatePools& private_pools;
    Captures& captures;
    UnmanagedSegments& unmanaged;
    LiveBlocks& blocks;
    FreeHandles& free_handles;
  };
  struct Options {
    bool tiering = true;  // else there is one class, and nothing leaves
    // Address space of a segment, at least; in pools that split.
    Bytes segment_bytes = 0;
  };
  // What a search came to.
  struct Found {
    Block* block = nullptr;
    Bytes lacking = 0;             // without a block: memory, at least
    std::optional<Error> error{};  // of the driver, for no want of memory
  };

  Placement(const Parts& parts, const Options& options)
      : p_(parts), options_(options) {}

  // Made if there is none.
  Pool& PoolOf(const PoolKey& key);

  // ---- searches ------------------------------------------------------------

  // Memory may grow to `limit`; 0: only what is cached serves.
  Found Search(Pool& pool, Bytes size, Bytes limit);
  // What is cached alone, or nullptr.
  Block* FindCached(Pool& pool, Bytes size);
  // A cached block of a pool that serves everybody when memory runs out.
  Block* Borrow(PoolKey key, Bytes size);

  // ---- address space goes --------------------------------------------------

  // What others can have when no more is to be had.
  void DropEmptySegments();
  // Drops private pools without use and memory.
  void ForgetPools();

 private:
  // Free handles of other classes, where classes are kept apart.
  BlockHeap::Run FindTakeOver(const Pool& pool, Bytes size,
                              const BlockHeap::BusyPlace* busy = nullptr);
  Block* TakeOver(Pool& pool, BlockHeap::Run free);
  // Memory for `size` bytes at `start`, or in a segment of its own (0).
  void MapRun(Pool& pool, Address start, Bytes size, Bytes limit,
              const StreamsIdle& idle, Found* found);
  // What is free elsewhere moves there, and then the driver is asked.
  PageStore::Mapped MoveAndMap(Address start, Bytes size, Bytes limit,
                               const StreamsIdle& idle, Found* found);
  Segment* AddSegment(Pool& pool, Bytes size);

  const Parts p_;
  const Options options_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_PLACEMENT_H_
