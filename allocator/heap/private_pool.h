// SPDX-License-Identifier: Apache-2.0
// Private pools: memory that is kept apart for a CUDA graph or a MemPool.
//
// A private pool is counted: torch's graphs, MemPool objects and use_mem_pool
// contexts each hold one use. While it is in use its cached blocks are not
// given back, whatever empties the cache: a graph that will be replayed has
// their addresses in it. Only before its own allocations are out of memory does
// a pool that no capture ever used give up what it has cached. When the last
// use goes, the memory that is still allocated stays until it is freed, and the
// rest may be given back.
//
// Being routed is not capturing: only while a stream of the device captures are
// events left alone, frees that need one put off, nothing given back and
// nothing evicted. What a capture reads of other memory, on this device or
// another, is an *operand* of its pool: it is pinned, because the graph runs
// again without a guard, until the pool's last use goes.
//
// A route (pool_routes.h) sends allocations here. One that is set waits for
// evictions that are recording events, and while it is open none begins. What a
// capture kept that failed leaves again, and its use of the pool counts no
// more.
//
// Device lock for everything here. Private pools live in the regions that are
// never evicted.
#ifndef STRATALLOC_ALLOCATOR_HEAP_PRIVATE_POOL_H_
#define STRATALLOC_ALLOCATOR_HEAP_PRIVATE_POOL_H_

#include <memory>
#include <set>

#include "allocator/values/pool_id.h"

namespace stratalloc {

struct HandleUse;     // handle_use.h
struct MemorySource;  // memory_source.h

struct PrivatePool {
  int use_count = 1;
  // Of them those of captures that are over, whose routes torch has not ended.
  int failed = 0;
  bool in_use() const { return use_count > failed; }
  // Its cached blocks serve everybody before the device is out of memory.
  bool use_on_oom = false;
  // Every segment is one block, handed out whole.
  bool no_split = false;
  // A capture allocated here, or a checkpoint was taken: graphs may have the
  // addresses of what is cached.
  bool addresses_kept = false;
  // Where its segments come from; nullptr: the device's own memory.
  std::shared_ptr<const MemorySource> source;
  // Evictable handles that captures into it use, each pinned once.
  std::set<HandleUse*> operands;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_PRIVATE_POOL_H_
