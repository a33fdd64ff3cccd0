// SPDX-License-Identifier: Apache-2.0
#include "accounting/ledger.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "accounting/category.h"
#include "accounting/scope_text.h"

namespace stratalloc {
namespace {

std::size_t Index(TierId tier) { return static_cast<std::size_t>(tier); }

std::size_t Index(DeviceIndex device) {
  return static_cast<std::size_t>(Raw(device)) %
         static_cast<std::size_t>(kMaxDevices);
}

std::string Describe(const LedgerRow& row) {
  return "device " + std::to_string(Raw(row.device)) + ", " +
         ScopeText(row.charge.scope) + ", " + CategoryName(row.charge.category);
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
  row.live = Read(account.live);
  row.peak = Read(account.peak);
  row.allocated = account.Allocated();
  row.freed = Read(account.freed);
  row.relabelled = static_cast<std::int64_t>(Read(account.relabelled));
  row.at_peak = account.AtPeak();
  row.blocks = account.Blocks();
  row.blocks_allocated = Read(account.blocks_made);
  row.blocks_freed = Read(account.blocks_freed);
  for (const TierId tier : {TierId::kHost, TierId::kDisk}) {
    row.tier_bytes[Index(tier)] = Read(account.below[Index(tier)]);
  }
  row.tier_bytes[Index(TierId::kDevice)] = account.OnDevice();
  row.evicted_bytes = Read(account.evicted);
  row.restored_bytes = Read(account.restored);
  row.to_disk_bytes = Read(account.to_disk);
  row.from_disk_bytes = Read(account.from_disk);
  row.stalls = Read(stalls);
  row.stall_ns = Read(stall_ns);
  return row;
}

ScopeRow Ledger::Scope::Row() const {
  return {device, scope, Read(account.live), Read(account.peak),
          Read(account.device_peak)};
}

Ledger::Entry* Ledger::FindLocked(DeviceIndex device, Charge charge) {
  const auto found = index_.find(Key(device, charge));
  return found == index_.end() ? nullptr : found->second;
}

Ledger::Entry& Ledger::RowLocked(DeviceIndex device, Charge charge) {
  if (Entry* row = FindLocked(device, charge)) return *row;
  Entry& row = rows_.emplace_back();
  row.named.device = device;
  row.named.charge = {charge.scope, charge.category};
  row.account.device = &devices_[Index(device)];
  row.account.scope = &ScopeLocked(device, charge.scope);
  index_.emplace(Key(device, charge), &row);
  return row;
}

ScopeAccount& Ledger::ScopeLocked(DeviceIndex device, ScopeId scope) {
  const std::uint64_t key = Key(device, {scope, Category::kUnknown});
  const auto found = scope_index_.find(key);
  if (found != scope_index_.end()) return found->second->account;
  Scope& made = scopes_.emplace_back();
  made.device = device;
  made.scope = scope;
  scope_index_.emplace(key, &made);
  limits_.Add({device, scope, &made.account});
  return made.account;
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
  Add(row->stalls, 1);
  Add(row->stall_ns, ns);
}

void Ledger::Limit(DeviceIndex device, std::string_view path, Bytes bytes) {
  MutexLock lock(mutex_);
  std::vector<ScopeLimits::Owner> owners;
  for (Scope& scope : scopes_) {
    owners.push_back({scope.device, scope.scope, &scope.account});
  }
  limits_.Set(device, path, bytes, owners);
}

bool Ledger::Unlimit(DeviceIndex device, std::string_view path) {
  MutexLock lock(mutex_);
  return limits_.Remove(device, path);
}

std::vector<ScopeLimits::Limit> Ledger::Limits() const {
  MutexLock lock(mutex_);
  return limits_.All();
}

bool Ledger::HasLimits(DeviceIndex device) const {
  MutexLock lock(mutex_);
  return limits_.HasSome(device);
}

Status Ledger::Admit(DeviceIndex, const ChargeAccount& account, Bytes size) {
  MutexLock lock(mutex_);
  return limits_.Admit(*account.scope, size);
}

Status Ledger::MayOwn(DeviceIndex device, ScopeId scope, Bytes size) {
  MutexLock lock(mutex_);
  return limits_.Admit(ScopeLocked(device, scope), size);
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

std::vector<ScopeRow> Ledger::Scopes() const {
  std::vector<ScopeRow> rows;
  {
    MutexLock lock(mutex_);
    for (const Scope& scope : scopes_) rows.push_back(scope.Row());
  }
  std::sort(rows.begin(), rows.end(), [](const ScopeRow& a, const ScopeRow& b) {
    return std::tuple(a.device, a.scope) < std::tuple(b.device, b.scope);
  });
  return rows;
}

DeviceTotals Ledger::Totals(DeviceIndex device) const {
  const DeviceAccount& account = devices_[Index(device)];
  const Bytes on_device = Read(account.on_device);
  return {on_device + Read(account.below), on_device, Read(account.peak)};
}

DeviceSums Ledger::Sums(DeviceIndex device, std::size_t named) const {
  DeviceSums sums;
  // What is in a row is read without the lock, as the allocator writes it: who
  // charges a scope for the first time waits no longer than this list takes.
  std::vector<const Scope*> scopes;
  std::vector<const Entry*> rows;
  {
    MutexLock lock(mutex_);
    scopes.reserve(scopes_.size());
    for (const Scope& scope : scopes_) scopes.push_back(&scope);
    rows.reserve(rows_.size());
    for (const Entry& entry : rows_) rows.push_back(&entry);
  }
  std::vector<std::pair<Bytes, ScopeId>> all;
  for (const Scope* scope : scopes) {
    if (scope->device != device) continue;
    all.emplace_back(Read(scope->account.peak), scope->scope);
  }
  sums.scopes = all.size();
  named = std::min(named, all.size());
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(named);
  std::partial_sort(
      all.begin(), end, all.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
      });
  for (auto one = all.begin(); one != end; ++one) {
    sums.owners.push_back({.scope = one->second, .most = one->first});
  }
  tsl::robin_map<std::uint32_t, DeviceSums::Owner*> by_scope;
  for (DeviceSums::Owner& owner : sums.owners) {
    by_scope.emplace(Raw(owner.scope), &owner);
  }
  for (const Entry* entry : rows) {
    if (entry->named.device != device) continue;
    const LedgerRow row = entry->Row();
    const auto found = by_scope.find(Raw(row.charge.scope));
    DeviceSums::Owner& owner =
        found != by_scope.end() ? *found->second : sums.others;
    std::array<Bytes, kTiers>& category =
        sums.categories[static_cast<std::size_t>(Raw(row.charge.category))];
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      owner.bytes[tier] += row.tier_bytes[tier];
      category[tier] += row.tier_bytes[tier];
    }
    owner.evicted_bytes += row.evicted_bytes;
    owner.restored_bytes += row.restored_bytes;
    owner.stalls += row.stalls;
    owner.stall_ns += row.stall_ns;
  }
  return sums;
}

Bytes Ledger::Owned(ScopeId scope) const {
  MutexLock lock(mutex_);
  Bytes owned = 0;
  for (std::size_t device = 0; device < kMaxDevices; ++device) {
    const auto found = scope_index_.find(
        Key(static_cast<DeviceIndex>(device), {scope, Category::kUnknown}));
    if (found != scope_index_.end()) owned += Read(found->second->account.live);
  }
  return owned;
}

void Ledger::ResetPeaks(DeviceIndex device) {
  MutexLock lock(mutex_);
  for (Entry& row : rows_) {
    if (row.named.device == device) row.account.ResetPeak();
  }
  for (Scope& scope : scopes_) {
    if (scope.device == device) scope.account.ResetPeak();
  }
  devices_[Index(device)].BeginPeak();
}

// Rows and totals under one lock, names (another leaf lock) after it.
Ledger::Everything Ledger::Copy() const {
  Everything all;
  MutexLock lock(mutex_);
  for (const Entry& entry : rows_) all.rows.push_back(entry.Row());
  for (const Scope& scope : scopes_) all.scopes.push_back(scope.Row());
  for (std::size_t i = 0; i < all.totals.size(); ++i) {
    all.totals[i] = Totals(static_cast<DeviceIndex>(i));
  }
  all.wrong_limits = limits_.AllWrong();
  return all;
}

Status Ledger::CheckRow(const LedgerRow& row) {
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
  return {};
}

Status Ledger::CheckSums(const Everything& all) {
  std::array<DeviceTotals, kMaxDevices> sums{};
  std::map<std::pair<DeviceIndex, ScopeId>, Bytes> scopes;
  std::int64_t relabelled = 0;
  for (const LedgerRow& row : all.rows) {
    DeviceTotals& sum = sums[Index(row.device)];
    sum.live += row.live;
    sum.on_device += row.tier_bytes[Index(TierId::kDevice)];
    sum.peak += row.at_peak;
    scopes[{row.device, row.charge.scope}] += row.live;
    relabelled += row.relabelled;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::string device = "device " + std::to_string(i);
    const DeviceTotals& total = all.totals[i];
    if (sums[i].live != total.live) {
      return Differ(device, "sum of scopes", sums[i].live, "live", total.live);
    }
    if (sums[i].on_device != total.on_device) {
      return Differ(device, "sum of scopes on the device", sums[i].on_device,
                    "on the device", total.on_device);
    }
    if (sums[i].peak != total.peak) {
      return Differ(device, "sum of scopes at the peak", sums[i].peak, "peak",
                    total.peak);
    }
  }
  for (const ScopeRow& scope : all.scopes) {
    const Bytes sum = scopes[{scope.device, scope.scope}];
    if (sum != scope.live) {
      return Differ(ScopeText(scope.scope), "sum of categories", sum, "live",
                    scope.live);
    }
    const Bytes peak = all.totals[Index(scope.device)].peak;
    if (scope.peak_allocated > peak) {
      return Differ(ScopeText(scope.scope), "peak while it allocated",
                    scope.peak_allocated, "the device's peak", peak);
    }
  }
  for (const ScopeLimits::Wrong& limit : all.wrong_limits) {
    return Differ(OneLine(limit.path), "sum of its scopes", limit.sum,
                  "what its limit counts", limit.owned);
  }
  if (relabelled != 0) {
    return Differ("all rows", "sum of re-labels",
                  static_cast<std::uint64_t>(relabelled), "zero", 0);
  }
  return {};
}

Status Ledger::CheckInvariants() const {
  const Everything all = Copy();
  for (const LedgerRow& row : all.rows) {
    if (Status status = CheckRow(row); !status) return status;
  }
  return CheckSums(all);
}

}  // namespace stratalloc
