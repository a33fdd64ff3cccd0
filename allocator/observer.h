// SPDX-License-Identifier: Apache-2.0
// The two doors through which the allocator speaks to higher rooms. It owns
// these interfaces; accounting implements AllocObserver, tiering implements
// Reclaimer; python_shim plugs them in before the first block exists.
#ifndef STRATALLOC_ALLOCATOR_OBSERVER_H_
#define STRATALLOC_ALLOCATOR_OBSERVER_H_

#include <atomic>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"

namespace stratalloc {

// Who pays for a block. Stored in the block; a re-label replaces it.
struct Charge {
  ScopeId scope = kRootScope;
  Category category = Category::kUnknown;

  friend bool operator==(const Charge&, const Charge&) = default;
};

// What an observer keeps of one device and charge, as far as every malloc and
// free moves it: the allocator adds here itself, under its device lock, rather
// than call. Relaxed atomics, so that reports may read without the lock;
// writers are serialised by it, so none of this is a read-modify-write.
struct ChargeAccount {
  std::atomic<Bytes> live{0};
  std::atomic<Bytes> peak{0};           // of live
  std::atomic<Bytes> allocated{0};      // cumulative
  std::atomic<Bytes> freed{0};          // cumulative
  std::atomic<Bytes>* total = nullptr;  // live bytes of the whole device

  static void Add(std::atomic<Bytes>& to, Bytes n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  static Bytes Read(const std::atomic<Bytes>& from) {
    return from.load(std::memory_order_relaxed);
  }
  void RaisePeak() {
    if (const Bytes now = Read(live); now > Read(peak)) {
      peak.store(now, std::memory_order_relaxed);
    }
  }
  void Allocate(Bytes n) {
    Add(live, n);
    Add(allocated, n);
    Add(*total, n);
    RaisePeak();
  }
  // REQUIRES: n <= live.
  void Free(Bytes n) {
    Add(live, -n);
    Add(freed, n);
    Add(*total, -n);
  }
};

// Told of every byte that changes hands. Called under the device lock: must
// not wait, allocate device memory, call Python or take a lock of lower rank
// than LockRank::kLedger. Never fails.
class AllocObserver {
 public:
  virtual ~AllocObserver() = default;
  // Where OnAllocate and OnFree of this charge would add, valid for the life
  // of the observer: adding to it is the same as calling them. nullptr: call.
  virtual ChargeAccount* Account(DeviceIndex, Charge) { return nullptr; }
  // The device's peaks are reset.
  virtual void OnResetPeaks(DeviceIndex) {}
  virtual void OnAllocate(DeviceIndex device, Charge charge, Bytes bytes) = 0;
  // `charge` is the block's, so the credit goes where the charge went.
  virtual void OnFree(DeviceIndex device, Charge charge, Bytes bytes) = 0;
  virtual void OnRelabel(DeviceIndex device, Charge from, Charge to,
                         Bytes bytes) = 0;
  // `bytes` of a block moved between tiers. A free of non-resident bytes
  // reports from = the tier they were on, to = kDevice, moved = false first,
  // so that per tier sums stay true without counting traffic.
  virtual void OnMove(DeviceIndex device, Charge charge, TierId from, TierId to,
                      Bytes bytes, bool moved) = 0;
};

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
  // Why Reclaim could not do more, for the out-of-memory message, e.g. "the
  // host budget of 32 MiB is spent and no disk is used". May be empty.
  virtual const char* LastRefusal(DeviceIndex device) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_OBSERVER_H_
