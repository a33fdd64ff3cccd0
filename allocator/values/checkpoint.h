// SPDX-License-Identifier: Apache-2.0
// A checkpoint: which blocks of a private pool were allocated at one moment.
//
// torch.compile's CUDA graph trees take one after each captured graph and go
// back to it before they run another branch: tensors that a graph will write
// must be allocated again, at the addresses that are in the graph.
//
// A plain value, taken and applied by Checkpoints. It holds
// no memory: between the two the pool must be in use, so that its memory stays.
#ifndef STRATALLOC_ALLOCATOR_VALUES_CHECKPOINT_H_
#define STRATALLOC_ALLOCATOR_VALUES_CHECKPOINT_H_

#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/values/charge_account.h"
#include "allocator/values/pool_id.h"

namespace stratalloc {

struct CheckpointBlock {
  Address address = 0;
  Bytes bytes = 0;
  Bytes requested = 0;
  Charge charge;
  SiteId site = kNoSite;  // while sites are recorded
};

struct Checkpoint {
  PoolId pool;
  std::vector<CheckpointBlock> allocated;  // in address order
};

// What going back changed: blocks that were freed, blocks that are allocated
// again and belong to the caller from then on.
struct CheckpointDelta {
  std::vector<CheckpointBlock> freed;
  std::vector<CheckpointBlock> allocated;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_CHECKPOINT_H_
