// SPDX-License-Identifier: Apache-2.0
// The ledger: live, peak and cumulative bytes of every scope and category, on
// every tier: the accounts of the process (allocator/values/charge_account.h).
//
// A block is charged to the scope and category on top of its thread's stack
// when it is allocated; the charge is stored in the block, and whoever frees
// it, on whatever thread, credits that charge. A re-label moves the charge.
//
// Thread-safety: all methods; one kLedger lock per ledger, taken under
// device locks, for the list of rows. The allocator looks a row's account up
// once and adds to it under its device lock. Rows and totals read meanwhile are
// whole numbers each, but add up at quiescent points only.
// Lifetime: Get() is never destroyed: blocks are freed until the very end of
// the process.
// Failure: nothing can fail, and no wrong number aborts the program: sums that
// do not add up (more bytes freed from a row than it holds) are found by
// CheckInvariants().
//
// Invariants, checked by CheckInvariants() at quiescent points:
//   sum over rows of live, on the device, at its peak = Totals(device)
//   sum over a scope's rows of live     = ScopeRow::live
//   row.live    = sum over tiers of row.tier_bytes, of which none is negative
//   row.peak   >= row.live;  ScopeRow::peak_allocated <= the device's peak
//   sum over rows of relabelled         = 0
//   sum over a limited path's scopes of live = Limit::owned
#ifndef STRATALLOC_ACCOUNTING_LEDGER_H_
#define STRATALLOC_ACCOUNTING_LEDGER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "accounting/scope_limits.h"
#include "allocator/base/mutex.h"
#include "allocator/base/result.h"
#include "allocator/values/charge_account.h"
#include "tsl/robin_map.h"

namespace stratalloc {

struct LedgerRow {
  DeviceIndex device{0};
  Charge charge;
  Bytes live = 0;
  Bytes peak = 0;               // of live, since the start or ResetPeaks()
  Bytes allocated = 0;          // cumulative
  Bytes freed = 0;              // cumulative
  std::int64_t relabelled = 0;  // re-labels to here minus from here
  Bytes at_peak = 0;            // on the device when that held the most
  std::uint64_t blocks = 0;     // live
  std::uint64_t blocks_allocated = 0, blocks_freed = 0;  // cumulative
  std::array<Bytes, kTiers> tier_bytes{};                // where `live` is now
  // Traffic, cumulative; a free or a re-label of evicted bytes is none.
  Bytes evicted_bytes = 0;   // device -> host or disk
  Bytes restored_bytes = 0;  // host or disk -> device
  Bytes to_disk_bytes = 0;
  Bytes from_disk_bytes = 0;
  std::uint64_t stalls = 0;  // times the scope waited for its bytes
  std::uint64_t stall_ns = 0;
};

// Of all categories of a scope.
struct ScopeRow {
  DeviceIndex device{0};
  ScopeId scope = kRootScope;
  Bytes live = 0;
  Bytes peak_owned = 0;  // of live, on all tiers together
  // Of everybody, on the device, while the scope allocated (charge_account.h).
  Bytes peak_allocated = 0;
};

// Who owns what of a device, in as few numbers as are shown over time.
struct DeviceSums {
  struct Owner {
    ScopeId scope = kRootScope;
    Bytes most = 0;                     // ScopeRow::peak_owned
    std::array<Bytes, kTiers> bytes{};  // by tier, of all categories
    // As LedgerRow has them.
    Bytes evicted_bytes = 0, restored_bytes = 0;
    std::uint64_t stalls = 0, stall_ns = 0;
  };
  std::array<std::array<Bytes, kTiers>, kCategories> categories{};
  // Those who owned most at any time since the start or ResetPeaks(), these
  // first: who is named changes as seldom as peaks do.
  std::vector<Owner> owners;
  Owner others;            // all the rest, as one; `most` is 0
  std::size_t scopes = 0;  // of both
};

struct DeviceTotals {
  Bytes live = 0;       // on all tiers together
  Bytes on_device = 0;  // torch's allocated_bytes.all.current
  Bytes peak = 0;       // of on_device, since the start or ResetPeaks()
};

class Ledger final : public ChargeAccounts {
 public:
  // The process's ledger. Tests make their own.
  static Ledger& Get();

  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  ChargeAccount& Of(DeviceIndex device, Charge charge) override;
  // The scope on top of this thread waited `ns` for a restore. Stalls belong
  // to scopes, not to categories: they are kept in the scope's parameter row
  // if it has one, else in its row of unknown category. Add up by scope.
  void OnStall(DeviceIndex device, ScopeId scope, std::uint64_t ns);

  // Of a scope and everything below it (scope_limits.h). A limit replaces an
  // earlier one; Unlimit is false if there was none.
  // Both under the device lock, if the device has blocks.
  void Limit(DeviceIndex device, std::string_view path, Bytes bytes);
  bool Unlimit(DeviceIndex device, std::string_view path);
  std::vector<ScopeLimits::Limit> Limits() const;
  bool HasLimits(DeviceIndex device) const;
  Status Admit(DeviceIndex device, const ChargeAccount& account,
               Bytes size) override;
  // The same of a scope, for who only asks.
  Status MayOwn(DeviceIndex device, ScopeId scope, Bytes size);

  // Every row ever charged, ordered by device, scope, category.
  std::vector<LedgerRow> Rows() const;
  // Every scope ever charged, ordered by device, scope.
  std::vector<ScopeRow> Scopes() const;
  DeviceTotals Totals(DeviceIndex device) const;
  // At most `named` owners. The lock is held for a ns or two for each row.
  DeviceSums Sums(DeviceIndex device, std::size_t named) const;
  // What the scope owns, without those below its path: all devices and tiers.
  Bytes Owned(ScopeId scope) const;
  // Every row's peak becomes its live. Exact if no malloc of the device runs
  // (the allocator calls it under the device lock).
  void ResetPeaks(DeviceIndex device) override;
  // kInvalidArgument with the row and the two numbers that differ.
  Status CheckInvariants() const;

 private:
  // Scope, category and device in one integer: a look-up hashes one word.
  static std::uint64_t Key(DeviceIndex device, Charge charge);
  struct KeyHash {
    std::size_t operator()(std::uint64_t key) const {
      // Fibonacci hashing: the table masks low bits, where categories sit.
      return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20);
    }
  };

  struct Entry {
    LedgerRow named;  // device and charge
    ChargeAccount account;
    Amount stalls{0}, stall_ns{0};  // written under the lock

    LedgerRow Row() const;
  };
  struct Scope {
    DeviceIndex device;
    ScopeId scope;
    ScopeAccount account;

    ScopeRow Row() const;
  };
  // Of one moment, for the checks.
  struct Everything {
    std::vector<LedgerRow> rows;
    std::vector<ScopeRow> scopes;
    std::array<DeviceTotals, kMaxDevices> totals;
    std::vector<ScopeLimits::Wrong> wrong_limits;
  };

  Everything Copy() const;
  static Status CheckRow(const LedgerRow& row);
  static Status CheckSums(const Everything& all);
  ScopeAccount& ScopeLocked(DeviceIndex device, ScopeId scope) REQUIRES(mutex_);
  Entry& RowLocked(DeviceIndex device, Charge charge) REQUIRES(mutex_);
  Entry* FindLocked(DeviceIndex device, Charge charge) REQUIRES(mutex_);

  mutable Mutex mutex_{LockRank::kLedger};
  std::deque<Entry> rows_ GUARDED_BY(mutex_);  // references stay valid
  tsl::robin_map<std::uint64_t, Entry*, KeyHash> index_ GUARDED_BY(mutex_);
  std::deque<Scope> scopes_ GUARDED_BY(mutex_);  // likewise
  tsl::robin_map<std::uint64_t, Scope*, KeyHash> scope_index_
      GUARDED_BY(mutex_);
  ScopeLimits limits_ GUARDED_BY(mutex_);
  std::array<DeviceAccount, kMaxDevices> devices_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_LEDGER_H_
