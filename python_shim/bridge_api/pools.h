// SPDX-License-Identifier: Apache-2.0
// Private pools (allocator/heap/private_pool.h), for CUDA graphs and MemPools.
// For threads and failure see setup.h.
//
// UsePool, BeginAllocateToPool and GoBackTo open the device. The others are
// about a pool that must be there: kInvalidArgument on a device that is not
// opened, since it has none.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_POOLS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_POOLS_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/values/checkpoint.h"
#include "allocator/values/memory_source.h"
#include "allocator/values/pool_id.h"
#include "tiering/engine/access.h"

namespace stratalloc::core {

// One more use of the pool. `source`: where its memory comes from, if not from
// the device; it goes when no memory of it is left and the pool is gone.
STRATALLOC_API Status
UsePool(int device, PoolId pool,
        std::shared_ptr<const MemorySource> source = nullptr);
// Allocations on streams that `filter` accepts go to `pool` until
// EndAllocateToPool. The filter runs under the device's lock: it must not
// allocate or wait. `current`: the caller's stream; nothing is evicted between
// a route whose filter does not accept it, which is a capture's that is about
// to begin, and the first use of that route. `reads`: what the graph will read
// that no operator names; brought back before the route is set, it and all that
// this thread's operators use now stays on the device until the pool's last use
// goes.
STRATALLOC_API Status BeginAllocateToPool(int device, PoolId pool,
                                          std::function<bool(StreamId)> filter,
                                          StreamId current,
                                          std::span<const Access> reads);
// `error_unread`: the caller ends the route of a failed capture too, before it
// reads the error of cudaStreamEndCapture. Then false if the capture made no
// graph, and what it read stays no longer.
STRATALLOC_API Result<bool> EndAllocateToPool(int device, PoolId pool,
                                              bool error_unread);
STRATALLOC_API Status ReleasePool(int device, PoolId pool);
STRATALLOC_API int PoolUseCount(int device, PoolId pool);  // 0: no such pool
STRATALLOC_API Status SetPoolUseOnOom(int device, PoolId pool, bool on);
STRATALLOC_API Status SetPoolNoSplit(int device, PoolId pool);
// Gives back the cached memory of a pool that has no use left, if it is there.
STRATALLOC_API Status EmptyPool(int device, PoolId pool);
// Base addresses of the pool's allocated blocks.
STRATALLOC_API Result<std::vector<Address>> AllocatedIn(int device,
                                                        PoolId pool);

// What a pool has allocated now, to go back to (allocator/values/checkpoint.h).
// The caller owns what GoBackTo has allocated again.
STRATALLOC_API Result<Checkpoint> TakeCheckpoint(int device, PoolId pool);
STRATALLOC_API Result<CheckpointDelta> GoBackTo(int device,
                                                const Checkpoint& checkpoint);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_POOLS_H_
