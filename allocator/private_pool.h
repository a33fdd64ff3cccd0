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
// A route sends allocations to a private pool while it is set: the last route
// whose filter accepts the stream wins. Torch's filter for a graph asks whether
// the stream captures, the one for use_mem_pool whether the thread is its own.
//
// Being routed is not capturing: only while a stream of the device captures are
// events left alone, frees that need one put off, nothing given back and
// nothing evicted. What a capture reads of other memory, on this device or
// another, is an *operand* of its pool: it is pinned, because the graph runs
// again without a guard, until the pool's last use goes.
//
// A capture begins and ends without our knowing: torch sets a route and then
// asks the driver, and takes the route back once the driver has ended the
// capture. So a route waits for evictions that are recording events, and while
// it is *open* none begins. Torch takes no route back whose capture it could
// not end: one that was spoilt, one that failed before it began. Such a route
// is *over*, and what it kept for its graph leaves again, when its stream does
// not capture and either its own thread is back here, which does nothing else
// between route and capture, or between capture and route's end; or the others
// have looked kLooks times, kLookNs apart. A MemPool's route, whose filter
// accepts its thread's stream at once, is no capture's and never open.
//
// Failures that remain: streams of other devices, which join a capture later
// and unseen, can be caught in the microseconds between the look at them and
// their event; a stream that somebody may destroy (external_streams.h) is not
// asked, so that only its own thread tells whether its capture failed.
//
// Device lock for everything here. Private pools live in the regions that are
// never evicted.
#ifndef STRATALLOC_ALLOCATOR_PRIVATE_POOL_H_
#define STRATALLOC_ALLOCATOR_PRIVATE_POOL_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "allocator/base/ids.h"

namespace stratalloc {

struct HandleEntry;   // handle_table.h
struct MemorySource;  // plain_memory.h

// Torch's MempoolId_t: `graph` is set for pools that captures made for
// themselves, `user` for MemPool and graph_pool_handle. Both 0: no private
// pool, the device's own.
struct PoolId {
  std::uint64_t graph = 0;
  std::uint64_t user = 0;

  bool is_private() const { return graph != 0 || user != 0; }
  auto operator<=>(const PoolId&) const = default;
};

struct PrivatePool {
  int use_count = 1;
  // Of them those of captures that are over, which torch never gives up.
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
  std::set<HandleEntry*> operands;
};

struct PoolRoute {
  // A look of another thread's that found no capture counts if the last one
  // that did is as long ago: 200 of them are a second, of which threads that
  // could run had their share.
  static constexpr int kLooks = 200;
  static constexpr std::int64_t kLookNs = 5'000'000;

  PoolId pool;
  // Called under the device lock; must not allocate or wait.
  std::function<bool(StreamId)> filter;
  StreamId stream;         // that captures, or will
  std::thread::id thread;  // that set it
  bool of_capture = false;
  bool over = false;
  int looks = 0;  // in a row
  std::int64_t looked_at = 0;
  // Operands that it has added to those of its pool.
  std::vector<HandleEntry*> operands;

  bool open() const { return of_capture && !over; }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_PRIVATE_POOL_H_
