// SPDX-License-Identifier: Apache-2.0
// Who pays for a block, and what is kept of one payer: the one path by which
// malloc, free, re-labels and moves between tiers reach accounting. Accounting
// owns the accounts and reports them; the allocator adds to them itself, since
// a call for each malloc would cost as much as the malloc.
//
// Thread-safety: of one device's accounts the writers hold its lock; so none of
// this is a read-modify-write. Atomics, so that reports may read without the
// lock: each number is whole, and they add up at quiescent points.
// Lifetime: an account's is the process's. Nothing here fails; numbers that do
// not add up are found by whoever owns the accounts.
// Invariant: live = allocated - freed + relabelled; of it `below` lies on other
// tiers, the rest on the device.
#ifndef STRATALLOC_ALLOCATOR_CHARGE_ACCOUNT_H_
#define STRATALLOC_ALLOCATOR_CHARGE_ACCOUNT_H_

#include <atomic>
#include <cstddef>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"

namespace stratalloc {

// Who pays for a block. Stored in the block; a re-label replaces it.
struct Charge {
  ScopeId scope = kRootScope;
  Category category = Category::kUnknown;

  friend bool operator==(const Charge&, const Charge&) = default;
};

// Of one device and charge.
struct ChargeAccount {
  using Number = std::atomic<Bytes>;

  Number live{0};           // on all tiers together
  Number peak{0};           // of live
  Number allocated{0};      // cumulative
  Number freed{0};          // cumulative
  Number relabelled{0};     // given here minus given away, modulo 2^64
  Number* total = nullptr;  // live bytes of the whole device
  Number below[kTiers]{};   // of live, by tier; [kDevice] is not used
  // Traffic, cumulative; a free or a re-label of evicted bytes is none.
  Number evicted{0};   // device -> host or disk
  Number restored{0};  // host or disk -> device
  Number to_disk{0}, from_disk{0};

  static void Add(Number& to, Bytes n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  static Bytes Read(const Number& from) {
    return from.load(std::memory_order_relaxed);
  }
  void RaisePeak() {
    if (const Bytes now = Read(live); now > Read(peak)) {
      peak.store(now, std::memory_order_relaxed);
    }
  }

  // New bytes, on the device.
  void Allocate(Bytes n) {
    Add(live, n);
    Add(allocated, n);
    Add(*total, n);
    RaisePeak();
  }
  void Free(Bytes n) {
    Add(live, -n);
    Add(freed, n);
    Add(*total, -n);
  }
  // Bytes that lie on this tier.
  void Free(Bytes n, TierId tier) {
    Free(n);
    if (tier != TierId::kDevice) Add(Below(tier), -n);
  }
  // Bytes on this tier are the other account's from now on.
  void Give(Bytes n, TierId tier, ChargeAccount& to) {
    Add(live, -n);
    Add(relabelled, -n);
    Add(to.live, n);
    Add(to.relabelled, n);
    to.RaisePeak();
    if (tier == TierId::kDevice) return;
    Add(Below(tier), -n);
    Add(to.Below(tier), n);
  }
  // `moved` false: one of two copies was given up, and nothing travelled.
  void Move(Bytes n, TierId from, TierId to, bool moved) {
    if (from == to) return;
    if (from != TierId::kDevice) Add(Below(from), -n);
    if (to != TierId::kDevice) Add(Below(to), n);
    if (!moved) return;
    if (from == TierId::kDevice) Add(evicted, n);
    if (to == TierId::kDevice) Add(restored, n);
    if (to == TierId::kDisk) Add(to_disk, n);
    if (from == TierId::kDisk) Add(from_disk, n);
  }
  Number& Below(TierId tier) { return below[static_cast<std::size_t>(tier)]; }
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
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CHARGE_ACCOUNT_H_
