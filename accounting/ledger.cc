// SPDX-License-Identifier: Apache-2.0
#include "accounting/ledger.h"

#include <algorithm>
#include <tuple>

#include "accounting/category.h"
#include "accounting/scope_table.h"

namespace stratalloc {
namespace {

std::size_t Index(TierId tier) { return static_cast<std::size_t>(tier); }

std::size_t Index(DeviceIndex device) {
  return static_cast<std::size_t>(Raw(device)) %
         static_cast<std::size_t>(kMaxDevices);
}

std::string Describe(const LedgerRow& row) {
  return "device " + std::to_string(Raw(row.device)) + ", " +
         ScopeName(row.charge.scope) + ", " + CategoryName(row.charge.category);
}

Status Differ(const std::string& what, const char* left, std::uint64_t a,
              const char* right, std::uint64_t b) {
  return Fail(ErrorCode::kInvalidArgument,
              "ledger: " + what + ": " + left + " = " + std::to_string(a) +
                  " bytes but " + right + " = " + std::to_string(b) +
                  " bytes; an allocation, free, re-label or move was counted "
                  "twice or not at all");
}

}  // namespace

Ledger& Ledger::Get() {
  static Ledger* const ledger = new Ledger();  // outlives every block
  return *ledger;
}

std::uint64_t Ledger::Key(DeviceIndex device, Charge charge) {
  return static_cast<std::uint64_t>(Raw(charge.scope)) << 16 |
         static_cast<std::uint64_t>(Raw(charge.category)) << 8 |
         static_cast<std::uint8_t>(Raw(device));
}

LedgerRow Ledger::Entry::Row() const {
  LedgerRow row = named;
  row.live = ChargeAccount::Read(account.live);
  row.peak = ChargeAccount::Read(account.peak);
  row.allocated = ChargeAccount::Read(account.allocated);
  row.freed = ChargeAccount::Read(account.freed);
  row.relabelled =
      static_cast<std::int64_t>(ChargeAccount::Read(account.relabelled));
  Bytes below = 0;
  for (const TierId tier : {TierId::kHost, TierId::kDisk}) {
    row.tier_bytes[Index(tier)] =
        ChargeAccount::Read(account.below[Index(tier)]);
    below += row.tier_bytes[Index(tier)];
  }
  // A report that is read while bytes move may see more below than there are.
  row.tier_bytes[Index(TierId::kDevice)] = row.live - std::min(row.live, below);
  row.evicted_bytes = ChargeAccount::Read(account.evicted);
  row.restored_bytes = ChargeAccount::Read(account.restored);
  row.to_disk_bytes = ChargeAccount::Read(account.to_disk);
  row.from_disk_bytes = ChargeAccount::Read(account.from_disk);
  return row;
}

Ledger::Entry* Ledger::FindLocked(DeviceIndex device, Charge charge) {
  const auto found = index_.find(Key(device, charge));
  return found == index_.end() ? nullptr : found->second;
}

Ledger::Entry& Ledger::RowLocked(DeviceIndex device, Charge charge) {
  if (Entry* row = FindLocked(device, charge)) return *row;
  Entry& row = rows_.emplace_back();
  row.named.device = device;
  row.named.charge = charge;
  row.account.total = &live_[Index(device)];
  index_.emplace(Key(device, charge), &row);
  return row;
}

ChargeAccount& Ledger::Of(DeviceIndex device, Charge charge) {
  MutexLock lock(mutex_);
  return RowLocked(device, charge).account;
}

void Ledger::OnStall(DeviceIndex device, ScopeId scope, std::uint64_t ns) {
  MutexLock lock(mutex_);
  Entry* row = FindLocked(device, Charge{scope, Category::kParameter});
  if (row == nullptr) {
    row = &RowLocked(device, Charge{scope, Category::kUnknown});
  }
  ++row->named.stalls;
  row->named.stall_ns += ns;
}

std::vector<LedgerRow> Ledger::Rows() const {
  std::vector<LedgerRow> rows;
  {
    MutexLock lock(mutex_);
    for (const Entry& entry : rows_) rows.push_back(entry.Row());
  }
  std::sort(rows.begin(), rows.end(),
            [](const LedgerRow& a, const LedgerRow& b) {
              return std::tuple(a.device, a.charge.scope, a.charge.category) <
                     std::tuple(b.device, b.charge.scope, b.charge.category);
            });
  return rows;
}

Bytes Ledger::LiveBytes(DeviceIndex device) const {
  return ChargeAccount::Read(live_[Index(device)]);
}

void Ledger::ResetPeaks(DeviceIndex device) {
  MutexLock lock(mutex_);
  for (Entry& row : rows_) {
    if (row.named.device != device) continue;
    row.account.peak.store(ChargeAccount::Read(row.account.live),
                           std::memory_order_relaxed);
  }
}

Status Ledger::CheckInvariants() const {
  // Rows and totals under one lock, names (another leaf lock) after it.
  std::vector<LedgerRow> rows;
  std::array<Bytes, kMaxDevices> live{};
  {
    MutexLock lock(mutex_);
    for (const Entry& entry : rows_) rows.push_back(entry.Row());
    for (std::size_t i = 0; i < live.size(); ++i) {
      live[i] = ChargeAccount::Read(live_[i]);
    }
  }
  std::array<Bytes, kMaxDevices> sums{};
  std::int64_t relabelled = 0;
  for (const LedgerRow& row : rows) {
    const Bytes flow =
        row.allocated - row.freed + static_cast<Bytes>(row.relabelled);
    if (row.live != flow) {
      return Differ(Describe(row), "live", row.live,
                    "allocated - freed + relabelled", flow);
    }
    Bytes tiers = 0;
    bool negative = false;
    for (const Bytes bytes : row.tier_bytes) {
      tiers += bytes;
      negative |= static_cast<std::int64_t>(bytes) < 0;
    }
    if (row.live != tiers || negative) {
      return Differ(Describe(row), "live", row.live, "sum of tiers", tiers);
    }
    if (row.peak < row.live) {
      return Differ(Describe(row), "peak", row.peak, "live", row.live);
    }
    sums[Index(row.device)] += row.live;
    relabelled += row.relabelled;
  }
  for (std::size_t device = 0; device < live.size(); ++device) {
    if (sums[device] != live[device]) {
      return Differ("device " + std::to_string(device), "sum of scopes",
                    sums[device], "live", live[device]);
    }
  }
  if (relabelled != 0) {
    return Differ("all rows", "sum of re-labels",
                  static_cast<std::uint64_t>(relabelled), "zero", 0);
  }
  return {};
}

}  // namespace stratalloc
