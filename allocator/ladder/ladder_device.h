// SPDX-License-Identifier: Apache-2.0
// What a rung of the ladder (ladder.h) may ask of the device: searches, memory
// that is given back or taken, and the Reclaimer. DeviceAllocator answers in
// device_ladder.cc; tests of the rungs have a device of their own.
//
// Locks: the caller holds none. Each call takes the device's as it needs it:
// what must be one step under it is one method here. Fails: a method that is
// given the attempt to change and returns true has put what the malloc ends
// with, memory or an error, into `answer`; after false the ladder goes on.
#ifndef STRATALLOC_ALLOCATOR_LADDER_LADDER_DEVICE_H_
#define STRATALLOC_ALLOCATOR_LADDER_LADDER_DEVICE_H_

#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/heap/pool.h"
#include "allocator/heap/private_pool.h"
#include "allocator/ladder/malloc_attempt.h"
#include "allocator/values/reclaimer.h"

namespace stratalloc {

class LadderDevice {
 public:
  // ---- searches: true if one served it; else `lacking` and `failed` are set

  virtual bool Search(MallocAttempt& attempt, Reach reach) = 0;
  // The first: finds the request's route, which says whether it may be served
  // by eviction, settles what is over, and searches what is cached. If that
  // serves it the Reclaimer hears of pressure.
  virtual bool SearchFirst(MallocAttempt& attempt) = 0;
  // To the request's reach, but not beyond the threshold of garbage collection.
  // If that serves it the Reclaimer hears of pressure.
  virtual bool Grow(MallocAttempt& attempt) = 0;
  // To the request's reach. `collected`: if that serves it, what is free still
  // goes to the driver.
  virtual bool SearchReleased(MallocAttempt& attempt, bool collected) = 0;
  // To the emergency threshold and then, since nothing was cold, to the limit.
  virtual bool SearchBeyondEmergency(MallocAttempt& attempt) = 0;
  // To the limit. It counts as a retry if it serves the request, and otherwise
  // if `is_retry`.
  virtual bool SearchAgain(MallocAttempt& attempt, bool is_retry) = 0;
  // Releases of cached memory that are over, of all threads.
  virtual std::uint64_t Releases() = 0;
  // To the limit, once no release is under way. `*came_free`: not as many as
  // `seen` are over.
  virtual bool SearchAfterReleases(MallocAttempt& attempt, std::uint64_t seen,
                                   bool* came_free) = 0;

  // ---- memory -------------------------------------------------------------

  // An unmanaged segment, if the request's pool has a source for such; also
  // true if the source fails for another reason than memory. Calls the source
  // without the lock.
  virtual bool FetchUnmanaged(MallocAttempt& attempt) = 0;
  // Do the pool's unmanaged segments come from cudaMalloc?
  virtual bool IsUnmanaged(const PoolKey& key) = 0;
  // A cached block of a private pool that lends.
  virtual bool Borrow(MallocAttempt& attempt) = 0;
  // Unmanaged segments that were searched past for long, while more than the
  // threshold of garbage collection is reserved.
  virtual void CollectOld() = 0;
  // How far `size` more would go beyond that threshold.
  virtual Bytes AboveCollectionThreshold(Bytes size) = 0;
  virtual bool HasCollectionThreshold() = 0;
  // Gives up cached memory until `wanted` came free, of the private pool `only`
  // if that is one. Waits for its streams. Returns the bytes.
  virtual Bytes ReleaseCached(Bytes wanted, PoolId only) = 0;
  // May this private pool's cached memory move? Not while a graph or a
  // checkpoint has its addresses.
  virtual bool MayMove(PoolId owner) = 0;
  // Waits for the events of freed blocks.
  virtual void SynchronizePendingFrees() = 0;
  // Asks whoever can free memory outside our sight to do so: true if something
  // came free. No lock.
  virtual bool FreeMemory() = 0;
  // Could the device ever hold so much?
  virtual bool CouldHold(Bytes size) = 0;
  // Would it not fit though everything that may leave had left?
  virtual bool CannotFit(Bytes size) = 0;
  // A handle of the request's pool that is away and has room for it, by an
  // address in it; 0 if there is none.
  virtual Address FindAwaySpace(const MallocAttempt& attempt) = 0;
  // Why there is no memory; counted. kDevice if the device answers nobody.
  virtual Error Refuse(MallocAttempt& attempt, bool fits_nowhere) = 0;

  // ---- the Reclaimer (reclaimer.h) ------------------------------------------
  // REQUIRES: may_reclaim. Without the lock.

  virtual bool IsCrowded() = 0;
  virtual bool UnderPressure() = 0;
  virtual bool RestoreSpace(Address away) = 0;
  virtual void ReclaimCold(Bytes bytes) = 0;
  virtual bool Reclaim(MemoryRequest& request) = 0;

 protected:
  ~LadderDevice() = default;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_LADDER_LADDER_DEVICE_H_
