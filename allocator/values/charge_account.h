// SPDX-License-Identifier: Apache-2.0
// Who pays for a block, and what is kept of one payer: the one path by which
// malloc, free, re-labels and moves between tiers reach accounting. Accounting
// owns the accounts and reports them; the allocator adds to them itself, since
// a call for each malloc would cost as much as the malloc.
//
// What the device held at its peak is known of every account without copying
// any: a peak has a number, and an account that is about to change for the
// first time since the last peak notes what it holds. One that has not changed
// since holds now what it held then.
//
// Thread-safety: of one device's accounts the writers hold its lock; so none of
// this is a read-modify-write. Atomics, so that reports may read without the
// lock: each number is whole, and they add up at quiescent points.
// Lifetime: an account's is the process's. Nothing here fails; numbers that do
// not add up are found by whoever owns the accounts.
// Invariants: of `live` `below` lies on other tiers, the rest on the device;
// the sums over a device's accounts are its DeviceAccount, live, on the device,
// and at the peak; over a scope's, its ScopeAccount; over the scopes below a
// limit, its LimitedSum.
#ifndef STRATALLOC_ALLOCATOR_VALUES_CHARGE_ACCOUNT_H_
#define STRATALLOC_ALLOCATOR_VALUES_CHARGE_ACCOUNT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"

namespace stratalloc {

// Who pays for a block. Stored in the block; a re-label replaces it.
struct Charge {
  ScopeId scope = kRootScope;
  Category category = Category::kUnknown;
  // Of a temporary: the frame on whose end it is one no more
  // (frame_accounts.h). 0: it stays what it is.
  std::uint32_t frame : 24 = 0;

  friend bool operator==(const Charge&, const Charge&) = default;
};
static_assert(sizeof(Charge) == 8, "a block's first cache line is full");

using Amount = std::atomic<Bytes>;

inline void Add(Amount& to, Bytes n) {
  to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}
inline Bytes Read(const Amount& from) {
  return from.load(std::memory_order_relaxed);
}
inline void Raise(Amount& peak, const Amount& now) {
  if (const Bytes n = Read(now); n > Read(peak)) {
    peak.store(n, std::memory_order_relaxed);
  }
}

// What all accounts of a device add up to.
struct DeviceAccount {
  Amount on_device{0};  // what torch calls allocated
  Amount below{0};      // on other tiers
  Amount peak{0};       // of on_device
  Amount peaks{0};      // how often it was raised or reset

  void Grow(Bytes n) {
    Add(on_device, n);
    if (Read(on_device) > Read(peak)) BeginPeak();
  }
  // What is on the device is its peak.
  void BeginPeak() {
    peak.store(Read(on_device), std::memory_order_relaxed);
    Add(peaks, 1);
  }
};

// What a limited scope and everything below it own (accounting's
// scope_limits.h): kept up by whoever is below, so that to ask costs no more
// than there are limits above the asker. `outer`: the next limit above it.
struct LimitedSum {
  Amount owned{0};
  LimitedSum* outer = nullptr;
};

// What the accounts of one scope, on one device, add up to.
struct ScopeAccount {
  Amount live{0};
  Amount peak{0};  // of live
  // The most that everybody had on the device right after an allocation of this
  // scope. What it frees or only reads raises nothing, and what another thread
  // has between two of its allocations it does not see.
  Amount device_peak{0};
  // The innermost limit above it, or nullptr. Accounting wants to be asked
  // first (ChargeAccounts::Admit). Changed under the device lock.
  std::atomic<LimitedSum*> limited{nullptr};

  void Own(Bytes n) {
    Add(live, n);
    for (LimitedSum* sum = limited.load(std::memory_order_relaxed);
         __builtin_expect(sum != nullptr, 0); sum = sum->outer) {
      Add(sum->owned, n);
    }
  }

  void ResetPeak() {
    peak.store(Read(live), std::memory_order_relaxed);
    device_peak.store(0, std::memory_order_relaxed);
  }
};

// Of one device and charge.
struct ChargeAccount {
  DeviceAccount* device = nullptr;
  ScopeAccount* scope = nullptr;
  Amount live{0};          // on all tiers together
  Amount peak{0};          // of live
  Amount freed{0};         // cumulative
  Amount relabelled{0};    // given here minus given away, modulo 2^64
  Amount blocks_made{0};   // cumulative, without those that were given
  Amount blocks_freed{0};  // cumulative
  Amount blocks_given{0};  // here minus away, modulo 2^64
  Amount below[kTiers]{};  // of live, by tier; [kDevice] is not used
  Amount held_at_peak{0};  // on the device, at the peak of number `peaks_seen`
  Amount peaks_seen{0};
  // Traffic, cumulative; a free or a re-label of evicted bytes is none.
  Amount evicted{0};   // device -> host or disk
  Amount restored{0};  // host or disk -> device
  Amount to_disk{0}, from_disk{0};

  Bytes Allocated() const {  // cumulative
    return Read(live) + Read(freed) - Read(relabelled);
  }
  Bytes Blocks() const {  // live
    return Read(blocks_made) + Read(blocks_given) - Read(blocks_freed);
  }
  Bytes OnDevice() const {
    // A report that is read while bytes move may see more below than there are.
    const Bytes elsewhere =
        Read(below[Index(TierId::kHost)]) + Read(below[Index(TierId::kDisk)]);
    const Bytes all = Read(live);
    return all > elsewhere ? all - elsewhere : 0;
  }
  // On the device when that held the most, since the start or the last reset.
  Bytes AtPeak() const {
    return Read(peaks_seen) == Read(device->peaks) ? Read(held_at_peak)
                                                   : OnDevice();
  }

  // A new block, on the device.
  void Allocate(Bytes n) {
    KeepAtPeak();
    Add(live, n);
    Add(blocks_made, 1);
    scope->Own(n);
    RaisePeaks();
    device->Grow(n);
    Raise(scope->device_peak, device->on_device);
  }
  // A block that is wholly on the device.
  void Free(Bytes n) {
    FreeBytes(n, TierId::kDevice);
    CountFreed();
  }
  // Bytes of a block, on this tier; then CountFreed, once for the block.
  void FreeBytes(Bytes n, TierId tier) {
    if (tier == TierId::kDevice) {
      KeepAtPeak();
      Add(device->on_device, -n);
    } else {
      Add(Below(tier), -n);
      Add(device->below, -n);
    }
    Add(live, -n);
    Add(freed, n);
    scope->Own(-n);
  }
  void CountFreed() { Add(blocks_freed, 1); }
  // Bytes on this tier are the other account's from now on; then GiveBlocks.
  void Give(Bytes n, TierId tier, ChargeAccount& to) {
    KeepAtPeak();
    to.KeepAtPeak();
    Add(live, -n);
    Add(relabelled, -n);
    scope->Own(-n);
    Add(to.live, n);
    Add(to.relabelled, n);
    to.scope->Own(n);
    if (tier != TierId::kDevice) {
      Add(Below(tier), -n);
      Add(to.Below(tier), n);
    }
    to.RaisePeaks();
  }
  void GiveBlocks(Bytes count, ChargeAccount& to) {
    Add(blocks_given, -count);
    Add(to.blocks_given, count);
  }
  void ResetPeak() { peak.store(Read(live), std::memory_order_relaxed); }
  // `moved` false: one of two copies was given up, and nothing travelled.
  void Move(Bytes n, TierId from, TierId to, bool moved) {
    if (from == to) return;
    KeepAtPeak();
    if (from != TierId::kDevice) Add(Below(from), -n);
    if (to != TierId::kDevice) Add(Below(to), n);
    if (from == TierId::kDevice) {
      Add(device->on_device, -n);
      Add(device->below, n);
    } else if (to == TierId::kDevice) {
      Add(device->below, -n);
      device->Grow(n);
    }
    if (!moved) return;
    if (from == TierId::kDevice) Add(evicted, n);
    if (to == TierId::kDevice) Add(restored, n);
    if (to == TierId::kDisk) Add(to_disk, n);
    if (from == TierId::kDisk) Add(from_disk, n);
  }

 private:
  static std::size_t Index(TierId tier) {
    return static_cast<std::size_t>(tier);
  }
  Amount& Below(TierId tier) { return below[Index(tier)]; }
  void RaisePeaks() {
    Raise(peak, live);
    Raise(scope->peak, scope->live);
  }
  // Before every change of what is on the device.
  void KeepAtPeak() {
    const Bytes now = Read(device->peaks);
    if (Read(peaks_seen) == now) return;
    held_at_peak.store(OnDevice(), std::memory_order_relaxed);
    peaks_seen.store(now, std::memory_order_relaxed);
  }
};

// Where the accounts are: accounting's. Called under the device lock: must not
// wait, allocate device memory, call Python or take a lock of lower rank than
// LockRank::kLedger.
class ChargeAccounts {
 public:
  virtual ~ChargeAccounts() = default;
  // Made if there is none.
  virtual ChargeAccount& Of(DeviceIndex device, Charge charge) = 0;
  // Every peak of the device is what is live.
  virtual void ResetPeaks(DeviceIndex device) = 0;
  // May this account's scope, which is limited, own `size` bytes more? Then
  // they are charged to it under the same lock. kLimited, and why not.
  virtual Status Admit(DeviceIndex, const ChargeAccount&, Bytes) { return {}; }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_CHARGE_ACCOUNT_H_
