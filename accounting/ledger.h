// SPDX-License-Identifier: Apache-2.0
// The ledger: live, peak and cumulative bytes of every scope and category, on
// every tier. It is the AllocObserver of the process.
//
// A block is charged to the scope and category on top of its thread's stack
// when it is allocated; the charge is stored in the block, and whoever frees
// it, on whatever thread, credits that charge. A re-label moves the charge.
//
// Thread-safety: all methods; one kLedger lock (leaf) per ledger, taken under
// device locks. The hot path is none of them: the allocator looks a row's
// account up once and adds to it under its device lock. Rows and totals read
// meanwhile are whole numbers each, but add up at quiescent points only.
// Lifetime: Get() is never destroyed: blocks are freed until the very end of
// the process.
// Failure: callbacks cannot fail and never abort the program for a wrong
// number. A report that does not add up (more bytes freed from a row than it
// holds) is clamped and kept as the first violation for CheckInvariants().
//
// Invariants, checked by CheckInvariants() at quiescent points:
//   sum over rows of live               = LiveBytes(device)
//   row.live    = row.allocated - row.freed + row.relabelled
//   row.live    = sum over tiers of row.tier_bytes
//   row.peak   >= row.live
//   sum over rows of relabelled         = 0
#ifndef STRATALLOC_ACCOUNTING_LEDGER_H_
#define STRATALLOC_ACCOUNTING_LEDGER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/base/result.h"
#include "allocator/observer.h"
#include "tsl/robin_map.h"

namespace stratalloc {

struct LedgerRow {
  DeviceIndex device{0};
  Charge charge;
  Bytes live = 0;
  Bytes peak = 0;               // of live, since the start or ResetPeaks()
  Bytes allocated = 0;          // cumulative; charged here by OnAllocate
  Bytes freed = 0;              // cumulative; credited here by OnFree
  std::int64_t relabelled = 0;  // re-labels to here minus from here
  std::array<Bytes, kTiers> tier_bytes{};  // where `live` is now
  // Traffic, cumulative; a free or a re-label of evicted bytes is none.
  Bytes evicted_bytes = 0;   // device -> host or disk
  Bytes restored_bytes = 0;  // host or disk -> device
  Bytes to_disk_bytes = 0;
  Bytes from_disk_bytes = 0;
  std::uint64_t stalls = 0;  // times the scope waited for its bytes
  std::uint64_t stall_ns = 0;
};

class Ledger final : public AllocObserver {
 public:
  // The process's ledger. Tests make their own.
  static Ledger& Get();

  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  ChargeAccount* Account(DeviceIndex device, Charge charge) override;
  void OnResetPeaks(DeviceIndex device) override { ResetPeaks(device); }
  // New bytes are on the device.
  void OnAllocate(DeviceIndex device, Charge charge, Bytes bytes) override;
  // REQUIRES: the bytes are on the device; those that are not were reported
  // by OnMove(..., tier, kDevice, bytes, moved = false) just before.
  void OnFree(DeviceIndex device, Charge charge, Bytes bytes) override;
  // Takes the bytes from the device share of `from`. Bytes of the block that
  // are elsewhere are moved to kDevice in `from` before and back in `to`
  // afterwards, both with moved = false.
  void OnRelabel(DeviceIndex device, Charge from, Charge to,
                 Bytes bytes) override;
  // `moved` = false corrects the tier sums without counting traffic.
  void OnMove(DeviceIndex device, Charge charge, TierId from, TierId to,
              Bytes bytes, bool moved) override;
  // The scope on top of this thread waited `ns` for a restore. Stalls belong
  // to scopes, not to categories: they are kept in the scope's parameter row
  // if it has one, else in its row of unknown category. Add up by scope.
  void OnStall(DeviceIndex device, ScopeId scope, std::uint64_t ns);

  // Every row ever charged, ordered by device, scope, category.
  std::vector<LedgerRow> Rows() const;
  // On all tiers together.
  Bytes LiveBytes(DeviceIndex device) const;
  // Every row's peak becomes its live. Exact if no malloc of the device runs
  // (the allocator calls it under the device lock, as OnResetPeaks).
  void ResetPeaks(DeviceIndex device);
  // kInvalidArgument with the row and the two numbers that differ.
  Status CheckInvariants() const;
  void ResetForTesting();

 private:
  // Scope, category and device in one integer: a look-up hashes one word.
  static std::uint64_t Key(DeviceIndex device, Charge charge);
  struct KeyHash {
    std::size_t operator()(std::uint64_t key) const {
      // Fibonacci hashing: the table masks low bits, where categories sit.
      return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20);
    }
  };

  // A row as it is kept: live, peak, allocated and freed are the account's,
  // the device's tier bytes what is live and nowhere else.
  struct Entry {
    LedgerRow cold;
    ChargeAccount account;

    Bytes Below() const {  // live bytes that are not on the device
      return cold.tier_bytes[1] + cold.tier_bytes[2];
    }
    Bytes OnTier(TierId tier) const;
    LedgerRow Row() const;
  };

  Entry& RowLocked(DeviceIndex device, Charge charge) REQUIRES(mutex_);
  Entry* FindLocked(DeviceIndex device, Charge charge) REQUIRES(mutex_);
  // How many of `bytes` the row has on `tier`, noting a violation if that is
  // not all.
  Bytes AvailableLocked(const Entry& row, TierId tier, Bytes bytes,
                        const char* what) REQUIRES(mutex_);

  mutable Mutex mutex_{LockRank::kLedger};
  std::deque<Entry> rows_ GUARDED_BY(mutex_);  // references stay valid
  tsl::robin_map<std::uint64_t, Entry*, KeyHash> index_ GUARDED_BY(mutex_);
  std::array<std::atomic<Bytes>, kMaxDevices> live_{};
  std::string first_violation_ GUARDED_BY(mutex_);
  std::uint64_t violations_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_LEDGER_H_
