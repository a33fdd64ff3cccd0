// SPDX-License-Identifier: Apache-2.0
// A copy of a device's blocks, on which is tried what would serve a request
// before anybody is told so: the same places are found by the same searches
// (block_heap.h), with a number for the memory. Nothing is asked of the driver.
//
// Streams count as idle, and free memory as free to move: waiting for them is
// what a malloc does before it is refused. So does address space: there is more
// of it than any card has memory.
//
// Thread-safety: Make's caller holds the device lock, and no bin of
// the heap has a block; the copy itself is its owner's alone and needs no lock:
// nothing of it is the device's. It costs a look at every block. Fails: Make,
// kHostOutOfMemory.
// Invariants: those of BlockHeap; used() = bytes of handles with memory.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_HEAP_COPY_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_HEAP_COPY_H_

#include <functional>
#include <memory>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/result.h"
#include "allocator/heap/block_heap.h"

namespace stratalloc {

class HeapCopy {
 public:
  // What is said of the owner of a pool (private_pool.h); of the moment that
  // is copied, since they may be asked without a lock.
  struct Rules {
    std::function<bool(PoolId)> may_move;  // may its free handles go elsewhere?
    std::function<bool(PoolId)> lends;     // to whoever is out of memory?
    std::function<bool(PoolId)> unsplit;   // is each segment one block?
  };
  // One malloc.
  struct Wish {
    PoolKey key;
    Bytes size = 0;  // rounded
    // What its source would be asked for (unmanaged_segments.h); 0: handles.
    Bytes unmanaged = 0;
    // Free handles of the stream's other lifetime classes serve, too.
    bool classes_meet = false;
  };

  // `used`: the bytes that a limit counts (page_store.h). `table`: of `heap`.
  static Result<std::unique_ptr<HeapCopy>> Make(const BlockHeap& heap,
                                                HandleTable& table, Bytes used,
                                                const Rules& rules);
  ~HeapCopy() { table_.DropEntries(); }
  HeapCopy(const HeapCopy&) = delete;
  HeapCopy& operator=(const HeapCopy&) = delete;

  struct Found {
    bool served = false;
    Bytes block = 0;    // served: what the block would be
    Bytes lacking = 0;  // not served: by how much the limit is too low
  };
  // Would it be served out of `limit` bytes?
  Found Serves(const Wish& wish, Bytes limit);
  // Would handles of so many bytes, each with a place already, be filled?
  Found HoldsBeside(Bytes handles, Bytes limit) const;

  // What happens to it meanwhile.
  void CompletePending();      // other streams are done with what was freed
  void Evict(Address handle);  // nothing, of one that is not on the device
  void Free(Address block);    // which is live
  // At least `wanted` bytes of free handles, if they are there, have no memory
  // any more: of this private pool, or of all that may move
  // (FreeHandles::Find).
  void Release(PoolId only, Bytes wanted);

  Bytes used() const { return used_; }
  const BlockHeap& heap() const { return heap_; }

 private:
  // Of a segment of unmanaged memory, whose own goes with it.
  struct UnmanagedRegion {
    HandleRegion region;
    HandleEntry entry;
  };

  HeapCopy(HandleTable table, Bytes used, Rules rules);

  void CopyUnmanagedRegions();
  void MakeFree(Block* block);
  // A free block of the owner's, or of one that lends.
  const Block* FindFree(const Wish& wish);
  Bytes HandedOut(const Wish& wish, PoolId owner, Bytes block,
                  bool unmanaged) const;
  // What positions of the run lack; and what a place of its own takes.
  Bytes Unmapped(BlockHeap::Run run);
  Bytes HandlesOf(PoolKind kind, Bytes size);
  // Whole handles that are free and may go elsewhere, but for those in the run.
  Bytes Releasable(BlockHeap::Run but) const;

  HandleTable table_;
  std::vector<std::unique_ptr<UnmanagedRegion>> unmanaged_;
  SegmentStats stats_;
  History history_;
  BlockHeap heap_;
  Bytes used_;
  const Rules rules_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_HEAP_COPY_H_
