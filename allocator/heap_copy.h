// SPDX-License-Identifier: Apache-2.0
// A copy of a device's blocks, on which is tried what would serve a request
// before anybody is told so: the same places are found by the same searches
// (block_heap.h), with a number for the memory. Nothing is asked of the driver.
//
// Streams count as idle, and free memory as free to move: waiting for them is
// what a malloc does before it is refused.
//
// Thread-safety: the constructor's caller holds the device lock, and no bin of
// the heap has a block; the copy itself is its owner's alone. It costs a look
// at every block. Fails: Make, kHostOutOfMemory.
// Invariants: those of BlockHeap; used() = bytes of handles with memory.
#ifndef STRATALLOC_ALLOCATOR_HEAP_COPY_H_
#define STRATALLOC_ALLOCATOR_HEAP_COPY_H_

#include <functional>
#include <memory>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/result.h"
#include "allocator/block_heap.h"

namespace stratalloc {

class HeapCopy {
 public:
  // May the pool's free handles go elsewhere?
  using MayMove = std::function<bool(const Pool& pool)>;

  // `used`: the bytes that a limit counts (page_store.h). `table`: of `heap`.
  static Result<std::unique_ptr<HeapCopy>> Make(const BlockHeap& heap,
                                                HandleTable& table, Bytes used,
                                                const MayMove& may_move);
  ~HeapCopy() { table_.DropEntries(); }
  HeapCopy(const HeapCopy&) = delete;
  HeapCopy& operator=(const HeapCopy&) = delete;

  // Would a malloc of `size` rounded bytes for the pool be served out of
  // `limit` bytes? If not, `*lacking` is by how much the limit is too low.
  // `classes_meet`: free handles of the stream's other lifetime classes serve,
  // too, as with tiering.
  bool Serves(const PoolKey& key, Bytes size, Bytes limit, bool classes_meet,
              Bytes* lacking);

  // What happens to it meanwhile.
  void CompletePending();      // other streams are done with what was freed
  void Evict(Address handle);  // which is on the device
  void Free(Address block);    // which is live

  Bytes used() const { return used_; }
  const BlockHeap& heap() const { return heap_; }

 private:
  HeapCopy(HandleTable table, Bytes used, MayMove may_move);

  void MakeFree(Block* block);
  // What positions of the run lack; and what a place of its own takes.
  Bytes Unmapped(BlockHeap::Run run);
  Bytes HandlesOf(PoolKind kind, Bytes size);
  // Whole handles that are free and may go elsewhere, but for those in the run.
  Bytes Releasable(BlockHeap::Run but) const;

  HandleTable table_;
  SegmentStats stats_;
  History history_;
  BlockHeap heap_;
  Bytes used_;
  const MayMove may_move_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_COPY_H_
