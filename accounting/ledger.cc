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

LedgerRow* Ledger::FindLocked(DeviceIndex device, Charge charge) {
  const auto found = index_.find(Key(device, charge));
  return found == index_.end() ? nullptr : found->second;
}

LedgerRow& Ledger::RowLocked(DeviceIndex device, Charge charge) {
  if (LedgerRow* row = FindLocked(device, charge)) return *row;
  LedgerRow& row = rows_.emplace_back();
  row.device = device;
  row.charge = charge;
  index_.emplace(Key(device, charge), &row);
  return row;
}

void Ledger::RaisePeak(LedgerRow& row) {
  if (row.live > row.peak) row.peak = row.live;
}

Bytes Ledger::TakeLocked(Bytes* from, Bytes bytes, const LedgerRow& row,
                         const char* what) {
  if (__builtin_expect(bytes <= *from, 1)) {
    *from -= bytes;
    return bytes;
  }
  // The name is looked up by CheckInvariants' caller, not here under locks;
  // ids are enough to find the row.
  if (violations_++ == 0) {
    first_violation_ = std::string(what) + " of " + std::to_string(bytes) +
                       " bytes, but the row holds " + std::to_string(*from) +
                       " (device " + std::to_string(Raw(row.device)) +
                       ", scope #" + std::to_string(Raw(row.charge.scope)) +
                       ", " + CategoryName(row.charge.category) + ")";
  }
  const Bytes taken = *from;
  *from = 0;
  return taken;
}

void Ledger::OnAllocate(DeviceIndex device, Charge charge, Bytes bytes) {
  MutexLock lock(mutex_);
  LedgerRow& row = RowLocked(device, charge);
  row.live += bytes;
  row.allocated += bytes;
  row.tier_bytes[Index(TierId::kDevice)] += bytes;
  live_[Index(device)] += bytes;
  RaisePeak(row);
}

void Ledger::OnFree(DeviceIndex device, Charge charge, Bytes bytes) {
  MutexLock lock(mutex_);
  LedgerRow& row = RowLocked(device, charge);
  const Bytes taken =
      TakeLocked(&row.tier_bytes[Index(TierId::kDevice)], bytes, row, "free");
  row.live -= taken;
  row.freed += taken;
  live_[Index(device)] -= taken;
}

void Ledger::OnRelabel(DeviceIndex device, Charge from, Charge to,
                       Bytes bytes) {
  if (from == to) return;
  MutexLock lock(mutex_);
  LedgerRow& source = RowLocked(device, from);
  LedgerRow& target = RowLocked(device, to);
  const Bytes taken = TakeLocked(&source.tier_bytes[Index(TierId::kDevice)],
                                 bytes, source, "re-label");
  source.live -= taken;
  source.relabelled -= static_cast<std::int64_t>(taken);
  target.live += taken;
  target.relabelled += static_cast<std::int64_t>(taken);
  target.tier_bytes[Index(TierId::kDevice)] += taken;
  RaisePeak(target);
}

void Ledger::OnMove(DeviceIndex device, Charge charge, TierId from, TierId to,
                    Bytes bytes, bool moved) {
  if (from == to) return;
  MutexLock lock(mutex_);
  LedgerRow& row = RowLocked(device, charge);
  row.tier_bytes[Index(to)] +=
      TakeLocked(&row.tier_bytes[Index(from)], bytes, row, "move");
  if (!moved) return;
  if (from == TierId::kDevice) row.evicted_bytes += bytes;
  if (to == TierId::kDevice) row.restored_bytes += bytes;
  if (to == TierId::kDisk) row.to_disk_bytes += bytes;
  if (from == TierId::kDisk) row.from_disk_bytes += bytes;
}

void Ledger::OnStall(DeviceIndex device, ScopeId scope, std::uint64_t ns) {
  MutexLock lock(mutex_);
  LedgerRow* row = FindLocked(device, Charge{scope, Category::kParameter});
  if (row == nullptr) {
    row = &RowLocked(device, Charge{scope, Category::kUnknown});
  }
  ++row->stalls;
  row->stall_ns += ns;
}

std::vector<LedgerRow> Ledger::Rows() const {
  std::vector<LedgerRow> rows;
  {
    MutexLock lock(mutex_);
    rows.assign(rows_.begin(), rows_.end());
  }
  std::sort(rows.begin(), rows.end(),
            [](const LedgerRow& a, const LedgerRow& b) {
              return std::tuple(a.device, a.charge.scope, a.charge.category) <
                     std::tuple(b.device, b.charge.scope, b.charge.category);
            });
  return rows;
}

Bytes Ledger::LiveBytes(DeviceIndex device) const {
  MutexLock lock(mutex_);
  return live_[Index(device)];
}

void Ledger::ResetPeaks(DeviceIndex device) {
  MutexLock lock(mutex_);
  for (LedgerRow& row : rows_) {
    if (row.device == device) row.peak = row.live;
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
    rows.assign(rows_.begin(), rows_.end());
    live = live_;
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
  live_.fill(0);
  first_violation_.clear();
  violations_ = 0;
}

}  // namespace stratalloc
