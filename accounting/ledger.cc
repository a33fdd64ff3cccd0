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
                  " bytes; an allocation, free, re-label or move was reported "
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

Bytes Ledger::Entry::OnTier(TierId tier) const {
  if (tier != TierId::kDevice) return cold.tier_bytes[Index(tier)];
  const Bytes live = ChargeAccount::Read(account.live);
  return live - std::min(live, Below());
}

LedgerRow Ledger::Entry::Row() const {
  LedgerRow row = cold;
  row.live = ChargeAccount::Read(account.live);
  row.peak = ChargeAccount::Read(account.peak);
  row.allocated = ChargeAccount::Read(account.allocated);
  row.freed = ChargeAccount::Read(account.freed);
  row.tier_bytes[Index(TierId::kDevice)] =
      row.live - std::min(row.live, Below());
  return row;
}

Ledger::Entry* Ledger::FindLocked(DeviceIndex device, Charge charge) {
  const auto found = index_.find(Key(device, charge));
  return found == index_.end() ? nullptr : found->second;
}

Ledger::Entry& Ledger::RowLocked(DeviceIndex device, Charge charge) {
  if (Entry* row = FindLocked(device, charge)) return *row;
  Entry& row = rows_.emplace_back();
  row.cold.device = device;
  row.cold.charge = charge;
  row.account.total = &live_[Index(device)];
  index_.emplace(Key(device, charge), &row);
  return row;
}

Bytes Ledger::AvailableLocked(const Entry& row, TierId tier, Bytes bytes,
                              const char* what) {
  const Bytes held = row.OnTier(tier);
  if (__builtin_expect(bytes <= held, 1)) return bytes;
  // The name is looked up by CheckInvariants' caller, not here under locks;
  // ids are enough to find the row.
  if (violations_++ == 0) {
    first_violation_ = std::string(what) + " of " + std::to_string(bytes) +
                       " bytes, but the row holds " + std::to_string(held) +
                       " (device " + std::to_string(Raw(row.cold.device)) +
                       ", scope #" +
                       std::to_string(Raw(row.cold.charge.scope)) + ", " +
                       CategoryName(row.cold.charge.category) + ")";
  }
  return held;
}

ChargeAccount* Ledger::Account(DeviceIndex device, Charge charge) {
  MutexLock lock(mutex_);
  return &RowLocked(device, charge).account;
}

void Ledger::OnAllocate(DeviceIndex device, Charge charge, Bytes bytes) {
  MutexLock lock(mutex_);
  RowLocked(device, charge).account.Allocate(bytes);
}

void Ledger::OnFree(DeviceIndex device, Charge charge, Bytes bytes) {
  MutexLock lock(mutex_);
  Entry& row = RowLocked(device, charge);
  row.account.Free(AvailableLocked(row, TierId::kDevice, bytes, "free"));
}

void Ledger::OnRelabel(DeviceIndex device, Charge from, Charge to,
                       Bytes bytes) {
  if (from == to) return;
  MutexLock lock(mutex_);
  Entry& source = RowLocked(device, from);
  Entry& target = RowLocked(device, to);
  const Bytes taken =
      AvailableLocked(source, TierId::kDevice, bytes, "re-label");
  ChargeAccount::Add(source.account.live, -taken);
  source.cold.relabelled -= static_cast<std::int64_t>(taken);
  ChargeAccount::Add(target.account.live, taken);
  target.cold.relabelled += static_cast<std::int64_t>(taken);
  target.account.RaisePeak();
}

void Ledger::OnMove(DeviceIndex device, Charge charge, TierId from, TierId to,
                    Bytes bytes, bool moved) {
  if (from == to) return;
  MutexLock lock(mutex_);
  Entry& entry = RowLocked(device, charge);
  const Bytes taken = AvailableLocked(entry, from, bytes, "move");
  LedgerRow& row = entry.cold;
  // What is on the device is what is live and not below.
  if (from != TierId::kDevice) row.tier_bytes[Index(from)] -= taken;
  if (to != TierId::kDevice) row.tier_bytes[Index(to)] += taken;
  if (!moved) return;
  if (from == TierId::kDevice) row.evicted_bytes += bytes;
  if (to == TierId::kDevice) row.restored_bytes += bytes;
  if (to == TierId::kDisk) row.to_disk_bytes += bytes;
  if (from == TierId::kDisk) row.from_disk_bytes += bytes;
}

void Ledger::OnStall(DeviceIndex device, ScopeId scope, std::uint64_t ns) {
  MutexLock lock(mutex_);
  Entry* row = FindLocked(device, Charge{scope, Category::kParameter});
  if (row == nullptr) {
    row = &RowLocked(device, Charge{scope, Category::kUnknown});
  }
  ++row->cold.stalls;
  row->cold.stall_ns += ns;
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
    if (row.cold.device != device) continue;
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
    if (violations_ > 0) {
      return Fail(
          ErrorCode::kInvalidArgument,
          "ledger: " + std::to_string(violations_) +
              " reports did not add up; the first: " + first_violation_);
    }
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
    for (const Bytes bytes : row.tier_bytes) tiers += bytes;
    if (row.live != tiers) {
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

void Ledger::ResetForTesting() {
  MutexLock lock(mutex_);
  rows_.clear();
  index_.clear();
  for (std::atomic<Bytes>& live : live_) live.store(0);
  first_violation_.clear();
  violations_ = 0;
}

}  // namespace stratalloc
