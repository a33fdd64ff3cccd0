// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_limits.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "accounting/scope_table.h"
#include "accounting/scope_text.h"

namespace stratalloc {
namespace {

constexpr std::size_t kShown = 3;

// Never less than `bytes`, as people read it: with two digits the nearest may
// be.
std::string AtLeast(Bytes bytes) {
  Bytes unit = 1;
  while (bytes > unit * 1024) unit *= 1024;
  const Bytes hundredths = (bytes * 100 + unit - 1) / unit;
  return FormatBytes((hundredths * unit + 99) / 100);
}

}  // namespace

bool IsBelow(std::string_view path, std::string_view above) {
  return path.starts_with(above) &&
         (path.size() == above.size() || path[above.size()] == '.' ||
          path[above.size()] == '/');
}

Bytes ScopeLimits::Entry::SumOfOwners() const {
  Bytes sum = 0;
  for (const Owner& owner : owners) sum += Read(owner.account->live);
  return sum;
}

Error ScopeLimits::Entry::Refusal(const ScopeAccount& account,
                                  Bytes size) const {
  std::vector<Owner> largest = owners;
  std::stable_sort(largest.begin(), largest.end(),
                   [](const Owner& a, const Owner& b) {
                     return Read(a.account->live) > Read(b.account->live);
                   });
  const std::string limited = OneLine(path);
  std::string asks = limited;
  for (const Owner& owner : owners) {
    if (owner.account == &account) asks = ScopeText(owner.scope);
  }
  const Bytes owned = Read(this->owned);
  std::string text =
      "CUDA out of memory. Tried to allocate " + FormatBytes(size) + " in " +
      asks + " on GPU " + std::to_string(Raw(device)) + ", but " + limited +
      " is limited to " + FormatBytes(bytes) + " (stratalloc.limit) and owns " +
      FormatBytes(owned) + ". ";
  for (std::size_t i = 0; i < std::min(kShown, largest.size()); ++i) {
    const Bytes live = Read(largest[i].account->live);
    // All of one owner: the size is said.
    if (live == 0 || live == owned) break;
    text += (i == 0 ? "Of these, " : ", ") + ScopeText(largest[i].scope) +
            (i == 0 ? " owns " : " ") + FormatBytes(live);
    if (i + 1 == std::min(kShown, largest.size()) ||
        Read(largest[i + 1].account->live) == 0) {
      text += ". ";
    }
  }
  return {ErrorCode::kLimited, text + "Raise the limit by " +
                                   AtLeast(owned + size - bytes) + ", or let " +
                                   limited + " hold less."};
}

ScopeLimits::Entry* ScopeLimits::Innermost(DeviceIndex device,
                                           std::string_view path,
                                           const Entry* but) const {
  Entry* innermost = nullptr;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    if (entry.get() == but || entry->device != device ||
        !IsBelow(path, entry->path)) {
      continue;
    }
    if (innermost == nullptr || entry->path.size() > innermost->path.size()) {
      innermost = entry.get();
    }
  }
  return innermost;
}

void ScopeLimits::Link(DeviceIndex device, const std::vector<Owner>& owners) {
  for (const std::unique_ptr<Entry>& entry : entries_) {
    // Another device's malloc may be reading its chain.
    if (entry->device != device) continue;
    entry->outer = Innermost(device, entry->path, entry.get());
  }
  for (const Owner& owner : owners) {
    owner.account->limited.store(
        Innermost(owner.device, ScopeName(owner.scope)),
        std::memory_order_relaxed);
  }
}

void ScopeLimits::Set(DeviceIndex device, std::string_view path, Bytes bytes,
                      const std::vector<Owner>& owners) {
  for (const std::unique_ptr<Entry>& entry : entries_) {
    if (entry->device != device || entry->path != path) continue;
    entry->bytes = bytes;
    return;
  }
  auto entry = std::make_unique<Entry>();
  entry->device = device;
  entry->path = path;
  entry->bytes = bytes;
  for (const Owner& owner : owners) {
    if (owner.device == device && IsBelow(ScopeName(owner.scope), path)) {
      entry->owners.push_back(owner);
    }
  }
  entry->owned.store(entry->SumOfOwners(), std::memory_order_relaxed);
  entries_.push_back(std::move(entry));
  Link(device, entries_.back()->owners);
}

bool ScopeLimits::Remove(DeviceIndex device, std::string_view path) {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
        return entry->device == device && entry->path == path;
      });
  if (it == entries_.end()) return false;
  const std::unique_ptr<Entry> gone = std::move(*it);
  entries_.erase(it);
  Link(device, gone->owners);
  return true;
}

void ScopeLimits::Add(const Owner& owner) {
  if (entries_.empty()) return;
  Entry* const innermost = Innermost(owner.device, ScopeName(owner.scope));
  for (LimitedSum* sum = innermost; sum != nullptr; sum = sum->outer) {
    static_cast<Entry*>(sum)->owners.push_back(owner);
  }
  owner.account->limited.store(innermost, std::memory_order_relaxed);
}

Status ScopeLimits::Admit(const ScopeAccount& account, Bytes size) const {
  for (const LimitedSum* sum = account.limited.load(std::memory_order_relaxed);
       sum != nullptr; sum = sum->outer) {
    const Entry& entry = *static_cast<const Entry*>(sum);
    const Bytes owned = Read(entry.owned);
    if (owned > entry.bytes || size > entry.bytes - owned) {
      return tl::unexpected(entry.Refusal(account, size));
    }
  }
  return {};
}

std::vector<ScopeLimits::Limit> ScopeLimits::All() const {
  std::vector<Limit> all;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    all.push_back(
        {entry->device, entry->path, entry->bytes, Read(entry->owned)});
  }
  return all;
}

std::vector<ScopeLimits::Wrong> ScopeLimits::AllWrong() const {
  std::vector<Wrong> wrong;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    const Bytes sum = entry->SumOfOwners();
    if (sum == Read(entry->owned)) continue;
    wrong.push_back({entry->path, Read(entry->owned), sum});
  }
  return wrong;
}

bool ScopeLimits::HasSome(DeviceIndex device) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->device == device;
  });
}

}  // namespace stratalloc
