// SPDX-License-Identifier: Apache-2.0
// What is asked of one device about private pools and captures: uses and routes
// (private_pools.h), what captures keep, checkpoints (checkpoints.h), and
// whether one is under way (captures.h). DeviceAllocator offers it as its own.
//
// Thread-safety: every method; they take the device lock. Lifetime: the
// device's. Fails: as the parts do; a pool that is not there is kNotFound.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_POOL_REQUESTS_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_POOL_REQUESTS_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "allocator/requests/device_parts.h"
#include "allocator/requests/device_waits.h"

namespace stratalloc {

class PoolRequests {
 public:
  PoolRequests(DeviceParts& parts, DeviceWaits& waits)
      : p_(parts), waits_(waits) {}

  // ---- pools and routes ----------------------------------------------------

  // One more use of the pool, which is made if it is not there: with memory of
  // `source`, if there is one. A pool keeps the source it was made with.
  void CreateOrUsePool(PoolId id,
                       std::shared_ptr<const MemorySource> source = nullptr)
      EXCLUDES(p_.mutex);
  // One more use, and a route to the pool. kInvalidArgument if it has one. May
  // wait, for the events of an eviction. `current`: the caller's stream; a
  // filter that accepts it already is no capture's, which has yet to begin.
  Status BeginAllocateToPool(PoolId id, std::function<bool(StreamId)> filter,
                             StreamId current = kDefaultStream)
      EXCLUDES(p_.mutex);
  // Ends the route (PrivatePools::EndRoute).
  Result<bool> EndAllocateToPool(PoolId id, bool error_unread = false)
      EXCLUDES(p_.mutex);
  Status ReleasePool(PoolId id) EXCLUDES(p_.mutex);  // one use less
  int PoolUseCount(PoolId id) EXCLUDES(p_.mutex);    // 0: no such pool
  Status SetUseOnOom(PoolId id, bool use_on_oom) EXCLUDES(p_.mutex);
  Status SetNoSplit(PoolId id) EXCLUDES(p_.mutex);
  // Gives back the cached memory of a pool that has no use left.
  Status EmptyPool(PoolId id) EXCLUDES(p_.mutex);

  // ---- what is allocated in them -------------------------------------------

  // Base addresses of the pool's allocated blocks.
  Result<std::vector<Address>> AllocatedIn(PoolId id) EXCLUDES(p_.mutex);
  // Allocated bytes of all private pools.
  Bytes PrivateAllocated() EXCLUDES(p_.mutex);
  Result<Checkpoint> TakeCheckpoint(PoolId id) EXCLUDES(p_.mutex);
  // Frees what the pool has allocated and allocates what it had, at the same
  // addresses. On failure nothing changed.
  Result<CheckpointDelta> GoBackTo(const Checkpoint& checkpoint)
      EXCLUDES(p_.mutex);

  // ---- captures ------------------------------------------------------------

  // False: no stream captures into a private pool here, and no other capture is
  // known of. No lock, no driver.
  bool MayCapture() const { return p_.routes.MayCapture(); }
  bool IsCapturing(StreamId stream) const {
    return MayCapture() && p_.device.IsCapturing(stream);
  }
  // Does `stream` capture, or another that this thread captures on, as far as
  // captures are known of here? Asks the driver, and waits for nothing: a
  // thread that is back here tells by itself that its own capture is over.
  bool CapturesHere(StreamId stream) EXCLUDES(p_.mutex);
  // A look at the captures of other threads, for who waits until bytes may
  // leave. Asks the driver, and waits for nothing.
  using OthersCaptures = Captures::Others;
  OthersCaptures LookAtCaptures() EXCLUDES(p_.mutex);
  // Does one of these streams of streams() capture? All that it has, if they
  // mean the whole device. Asks the driver.
  bool SomeCapture(std::uint64_t streams) const {
    return p_.captures.Some(streams);
  }
  // May bytes leave now (Captures::MayEvict)? Waits until it is known whether a
  // route's stream is about to capture: for microseconds, or once for a second
  // if its thread cannot tell.
  bool AwaitRoutes() EXCLUDES(p_.mutex);
  // If `stream` captures (captures.h), captures are looked for here until
  // it is over.
  void NoteCapture(StreamId stream) EXCLUDES(p_.mutex);

  // ---- what captures keep ---------------------------------------------------

  // If `stream` captures into a pool of this device: `operands`, which the
  // caller has pinned, stay where they are until the pool has no use left, and
  // true. They may be another device's.
  bool KeepForGraph(StreamId stream, std::span<HandleUse* const> operands)
      EXCLUDES(p_.mutex);
  // The same of a pool into which a capture has yet to begin. False if there is
  // no such pool.
  bool KeepForPool(PoolId id, std::span<HandleUse* const> operands)
      EXCLUDES(p_.mutex);
  // What a capture uses that torch did not begin, which the caller has pinned,
  // stays until it is freed: there is no pool whose end would say that its
  // graph is gone. REQUIRES: it is of a handle of this device.
  void KeepUntilFreed(HandleUse& operand) EXCLUDES(p_.mutex);

 private:
  DeviceParts& p_;
  DeviceWaits& waits_;
  // The last pool that lost its last use. It may be forgotten already, and
  // native still synchronises when it is emptied.
  PoolId released_ GUARDED_BY(p_.mutex){};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_POOL_REQUESTS_H_
