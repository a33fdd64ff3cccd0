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

Bytes ScopeLimits::Entry::Owned() const {
  Bytes sum = 0;
  for (const Owner& owner : owners) sum += Read(owner.account->live);
  return sum;
}

bool ScopeLimits::Entry::Covers(const ScopeAccount& account) const {
  return std::any_of(owners.begin(), owners.end(), [&](const Owner& owner) {
    return owner.account == &account;
  });
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
  const Bytes owned = Owned();
  std::string text =
      "CUDA out of memory. Tried to allocate " + FormatBytes(size) + " in " +
      asks + " on GPU " + std::to_string(Raw(device)) + ", but " + limited +
      " is limited to " + FormatBytes(bytes) + " (stratalloc.limit) and owns " +
      FormatBytes(owned) + ". ";
  for (std::size_t i = 0; i < std::min(kShown, largest.size()); ++i) {
    const Bytes live = Read(largest[i].account->live);
    if (live == 0) break;
    text += (i == 0 ? "Of these, " : ", ") + ScopeText(largest[i].scope) +
            (i == 0 ? " owns " : " ") + FormatBytes(live);
    if (i + 1 == std::min(kShown, largest.size()) ||
        Read(largest[i + 1].account->live) == 0) {
      text += ". ";
    }
  }
  return {ErrorCode::kLimited, text +
                                   "Free some of it, or raise the limit by " +
                                   AtLeast(owned + size - bytes) + "."};
}

void ScopeLimits::Set(DeviceIndex device, std::string_view path, Bytes bytes,
                      const std::vector<Owner>& owners) {
  for (Entry& entry : entries_) {
    if (entry.device != device || entry.path != path) continue;
    entry.bytes = bytes;
    return;
  }
  entries_.push_back({device, std::string(path), bytes, {}});
  for (const Owner& owner : owners) Add(owner);
}

bool ScopeLimits::Remove(DeviceIndex device, std::string_view path) {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.device == device && entry.path == path;
      });
  if (it == entries_.end()) return false;
  const std::vector<Owner> owners = std::move(it->owners);
  entries_.erase(it);
  for (const Owner& owner : owners) {
    owner.account->limited.store(
        std::any_of(
            entries_.begin(), entries_.end(),
            [&](const Entry& entry) { return entry.Covers(*owner.account); }),
        std::memory_order_relaxed);
  }
  return true;
}

void ScopeLimits::Add(const Owner& owner) {
  if (entries_.empty()) return;
  const std::string name = ScopeName(owner.scope);
  for (Entry& entry : entries_) {
    if (entry.device != owner.device || !IsBelow(name, entry.path) ||
        entry.Covers(*owner.account)) {
      continue;
    }
    entry.owners.push_back(owner);
    owner.account->limited.store(true, std::memory_order_relaxed);
  }
}

Status ScopeLimits::Admit(DeviceIndex device, const ScopeAccount& account,
                          Bytes size) const {
  for (const Entry& entry : entries_) {
    if (entry.device != device || !entry.Covers(account)) continue;
    const Bytes owned = entry.Owned();
    if (owned > entry.bytes || size > entry.bytes - owned) {
      return tl::unexpected(entry.Refusal(account, size));
    }
  }
  return {};
}

std::vector<ScopeLimits::Limit> ScopeLimits::All() const {
  std::vector<Limit> all;
  for (const Entry& entry : entries_) {
    all.push_back({entry.device, entry.path, entry.bytes, entry.Owned()});
  }
  return all;
}

bool ScopeLimits::HasSome(DeviceIndex device) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.device == device;
  });
}

}  // namespace stratalloc
