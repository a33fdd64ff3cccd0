// SPDX-License-Identifier: Apache-2.0
// The private pools of one device (private_pool.h): who uses them, which
// streams are routed to them, which captures are under way, and what captures
// keep on the device. Knows pools by id, streams and handles; no blocks.
//
// What a capture uses stays where it is, because its graph runs again without a
// guard: an operand of a routed capture until its pool has no use left, or
// until the capture is found to have failed; one of a capture that torch did
// not begin (captures.h) until it is freed. Each is pinned once by each.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Fails: kNotFound for a pool that is not there, kInvalidArgument for a route
// that is set twice or was never set, each in native's words.
// Invariant: a pool's `failed` = its routes that are over.
#ifndef STRATALLOC_ALLOCATOR_STREAMS_PRIVATE_POOLS_H_
#define STRATALLOC_ALLOCATOR_STREAMS_PRIVATE_POOLS_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "allocator/base/result.h"
#include "allocator/cuda/device.h"
#include "allocator/heap/private_pool.h"
#include "allocator/memory/handle_table.h"
#include "allocator/streams/pool_routes.h"

namespace stratalloc {

class PrivatePools {
 public:
  // `routes` are this object's to change; both outlive it.
  PrivatePools(const Device& device, PoolRoutes& routes)
      : device_(device), routes_(routes) {}
  PrivatePools(const PrivatePools&) = delete;
  PrivatePools& operator=(const PrivatePools&) = delete;

  // ---- pools --------------------------------------------------------------

  const std::map<PoolId, PrivatePool>& all() const { return pools_; }
  PrivatePool* Find(PoolId id);  // nullptr if there is none
  const PrivatePool* Find(PoolId id) const;
  Result<PrivatePool*> Get(PoolId id);
  // One more use of the pool, which is made if it is not there, with memory of
  // `source`. A pool keeps the source it was made with.
  void Use(PoolId id, std::shared_ptr<const MemorySource> source = nullptr);
  Status Release(PoolId id);  // one use less
  bool IsInUse(PoolId id) const;
  // Is every segment of its pools one block? Everybody's pools split, whatever
  // was said of the pool {0, 0}.
  bool IsUnsplit(PoolId id) const {
    if (!id.is_private()) return false;
    const PrivatePool* const pool = Find(id);
    return pool != nullptr && pool->no_split;
  }
  // Forgets the pools without use that `empty` says yes to.
  void Forget(const std::function<bool(PoolId)>& empty);

  // ---- routes and captures -------------------------------------------------

  // One more use, and a route to the pool. `current`: the caller's stream.
  // `captures`: the route is a capture's, which has yet to begin.
  Status BeginRoute(PoolId id, std::function<bool(StreamId)> filter,
                    StreamId current, bool captures);
  // `error_unread`: the caller ends a failed capture's route too, before it
  // reads the error of cudaStreamEndCapture. Then false if the capture made no
  // graph: the error is this thread's last one, this thread has set the route,
  // and had no such error then. What the capture added to the pool's operands
  // goes.
  Result<bool> EndRoute(PoolId id, bool error_unread = false);
  // The pool that the stream allocates from.
  PoolId RouteOf(StreamId stream);
  // Finds the routes of captures that are over. A stream that may be destroyed
  // is not asked: whoever is on one has noted it before (NoteCapture).
  void Settle();
  // A malloc asked for memory of the stream: it may capture into ours.
  void NoteStream(StreamId stream) { streams_.insert(stream); }
  // Does a stream capture that allocated here, ran a guarded operator since, or
  // was recorded on a block?
  bool Capturing();

  // ---- what captures keep ---------------------------------------------------

  // If `stream` captures into a pool: `operands`, which the caller has pinned,
  // stay until the pool has no use left, and true. They may be of another
  // device.
  bool KeepForGraph(StreamId stream, std::span<HandleUse* const> operands);
  // The same of a pool into which a capture has yet to begin. False if there is
  // no such pool.
  bool KeepForPool(PoolId id, std::span<HandleUse* const> operands);
  // An operand of a capture that torch did not begin.
  void KeepUntilFreed(HandleUse& operand);
  // The last block over the handle was freed.
  void DropFreed(HandleUse& freed) {
    if (!raw_operands_.empty()) DropRawOperand(freed);
  }
  // Every operand that is kept, once.
  std::set<const HandleUse*> Operands() const;

 private:
  void Keep(PoolId id, PrivatePool& pool, std::span<HandleUse* const> operands);
  // If no graph can be replayed any more.
  static void DropOperands(PrivatePool& pool);
  // Those that a capture added that made no graph.
  void DropOperandsOf(const PoolRoute& failed);
  void DropRawOperand(HandleUse& freed);
  void Reopen(PoolRoute& route);  // it is not over

  const Device& device_;
  PoolRoutes& routes_;
  std::map<PoolId, PrivatePool> pools_;
  std::set<HandleUse*> raw_operands_;
  // Those of pools, and those that a malloc asked for while there were routes.
  std::set<StreamId> streams_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STREAMS_PRIVATE_POOLS_H_
