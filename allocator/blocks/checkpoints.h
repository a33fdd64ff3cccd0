// SPDX-License-Identifier: Apache-2.0
// What a private pool has allocated, and how it goes back to what it had
// allocated at a checkpoint (checkpoint.h).
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Fails: kNotFound for a pool that is not there, kInvalidArgument where the
// pool has no free memory any more at an address of the checkpoint; then
// nothing has changed.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_CHECKPOINTS_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_CHECKPOINTS_H_

#include <vector>

#include "allocator/base/result.h"
#include "allocator/blocks/live_blocks.h"
#include "allocator/heap/block_heap.h"
#include "allocator/streams/private_pools.h"
#include "allocator/values/checkpoint.h"

namespace stratalloc {

class Checkpoints {
 public:
  struct Parts {
    BlockHeap& heap;
    PrivatePools& private_pools;
    LiveBlocks& blocks;
  };
  explicit Checkpoints(const Parts& parts) : p_(parts) {}

  // The pool's allocated blocks, in address order.
  std::vector<CheckpointBlock> AllocatedIn(PoolId id) const;
  // The pool keeps the addresses of what is cached from now on.
  Result<Checkpoint> Take(PoolId id);
  // Frees what the pool has allocated and allocates what it had, at the same
  // addresses.
  Result<CheckpointDelta> GoBack(const Checkpoint& checkpoint);

 private:
  // The free block of the pool over all of `wanted`, or nullptr.
  Block* FreeSpan(const CheckpointBlock& wanted, PoolId id) const;
  // REQUIRES: FreeSpan(wanted, id) has it.
  void TakeSpan(const CheckpointBlock& wanted, PoolId id);

  const Parts p_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_CHECKPOINTS_H_
