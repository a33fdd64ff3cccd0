// SPDX-License-Identifier: Apache-2.0
// The door through which the allocator asks tiering for memory. It owns the
// interface; tiering implements it, and python_shim plugs it in before the
// first block exists, as accounting's accounts (charge_account.h).
#ifndef STRATALLOC_ALLOCATOR_VALUES_RECLAIMER_H_
#define STRATALLOC_ALLOCATOR_VALUES_RECLAIMER_H_

#include <cstdint>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"

namespace stratalloc {

struct EvictableHandle;  // transactions.h

// One malloc that found no memory, as a Reclaimer serves it.
class MemoryRequest {
 public:
  // Tries to have the memory now. True ends the request: it is served, or the
  // driver failed for another reason than memory.
  virtual bool Take() = 0;
  // What a Take lacks, at least.
  virtual Bytes Missing() = 0;
  // Would it fail though everything that may leave had left?
  virtual bool IsHopeless() = 0;
  // It fails with this error, whatever memory there is: what asked for it
  // cannot go on.
  virtual void Fail(Error error) = 0;

 protected:
  ~MemoryRequest() = default;
};

// Asked by the allocator for memory it could not find itself.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  // Evicts until `request` is served, which it tries between evictions. Other
  // threads may be ahead: then it waits, and what this thread's operators use
  // may leave meanwhile; it is back when the call returns. False: the request
  // cannot be served. Called WITHOUT the device lock; may block on copies, disk
  // and other threads. Never called with in_ladder set (nested malloc).
  virtual bool Reclaim(DeviceIndex device, MemoryRequest& request) = 0;
  // The handle at `address` is away, or on its way, and a malloc wants the free
  // space in it: brings it back, if there is memory for it or, while the device
  // is under pressure, by evicting others, and waits for the copy. False if it
  // did not come. Waits for no other thread's operators. Called as Reclaim is.
  virtual bool RestoreSpace(DeviceIndex, Address) { return false; }
  // Evicts what is cold for good, at most about `bytes` of it; returns the
  // bytes that left. Called as Reclaim is.
  virtual Bytes ReclaimCold(DeviceIndex device, Bytes bytes) = 0;
  // empty_cache() has given the device's free memory back: what other tiers
  // hold of freed blocks goes, too. Called as Reclaim is.
  virtual void OnEmptyCache(DeviceIndex) {}
  // Do threads wait that were refused? Then nobody takes new memory past them:
  // Reclaim is the way.
  virtual bool IsCrowded() const { return false; }
  // Is the device under pressure, so that thresholds count?
  virtual bool UnderPressure(DeviceIndex) const { return false; }
  // The share of the limit above which OnPressure wants to be called, while
  // the device is under pressure.
  virtual double PressureThreshold() const { return 0; }
  // `allocated` bytes of `device` are on it now, under `limit`: may note that
  // a threshold was crossed. Called under the device lock: must only set a
  // flag.
  virtual void OnPressure(DeviceIndex device, Bytes allocated, Bytes limit) = 0;
  // The device is under pressure from now on: the limit fell below what is in
  // use, or somebody was refused while a capture let nothing leave, who finds
  // room made before the next try. Called without the device lock; never waits.
  virtual void NotePressure(DeviceIndex) {}
  // Bytes that could leave before the tiers below are full. What they hold of
  // handles that are on the device counts as room: a copy is given up for
  // another. Called as Reclaim is.
  virtual Bytes RoomBelow() { return 0; }
  // The same of one of the tiers.
  virtual Bytes RoomOn(TierId) { return RoomBelow(); }
  // In the order in which Reclaim would evict them at this tick. Any thread.
  virtual void Order(std::uint32_t, std::vector<EvictableHandle>*) const {}
  // Why Reclaim could not do more, for the out-of-memory message, e.g. "the
  // host budget of 32 MiB is spent and no disk is used". May be empty.
  virtual const char* LastRefusal(DeviceIndex device) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_RECLAIMER_H_
