// SPDX-License-Identifier: Apache-2.0
// Limits that a program sets for scopes: how many bytes a scope and everything
// below its path may own together, on all tiers. What would be more is refused
// when it is asked for; what is theirs already stays, and a re-label or a
// restore is never refused.
//
// The limits above a scope lie inside each other, because their paths begin
// alike: its account knows the innermost, each limit the next one out, and
// every charge adds to all of them (allocator/values/charge_account.h). To ask
// costs no more than that chain.
//
// Thread-safety: the caller holds the lock of the ledger whose accounts these
// are; for exact answers, and to Set or Remove while there are blocks, the
// device's, too. Lifetime: the ledger's. Fails: Admit, with kLimited.
// Equations: an account is `limited` by the innermost limit that covers its
// scope; a limit's `owned` = sum over the accounts it covers of live.
#ifndef STRATALLOC_ACCOUNTING_SCOPE_LIMITS_H_
#define STRATALLOC_ACCOUNTING_SCOPE_LIMITS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

// Is it this path, or below it: "Net.head" and "Net/loss" of "Net", not "Net2"?
bool IsBelow(std::string_view path, std::string_view above);

class ScopeLimits {
 public:
  // A scope and what all of its categories add up to.
  struct Owner {
    DeviceIndex device;
    ScopeId scope;
    ScopeAccount* account;
  };
  struct Limit {
    DeviceIndex device;
    std::string path;
    Bytes bytes;
    Bytes owned;
  };

  struct Wrong {
    std::string path;
    Bytes owned;  // as counted
    Bytes sum;    // of what the scopes own
  };

  // A limit replaces an earlier one of the same path. `owners`: every account.
  void Set(DeviceIndex device, std::string_view path, Bytes bytes,
           const std::vector<Owner>& owners);
  // False if there was none.
  bool Remove(DeviceIndex device, std::string_view path);
  // A scope has its first account.
  void Add(const Owner& owner);

  // May it own `size` bytes more? The message is native's first words, which
  // limit it would exceed, and who owns most of what is below that.
  Status Admit(const ScopeAccount& account, Bytes size) const;

  std::vector<Limit> All() const;
  // Those of which the second equation does not hold.
  std::vector<Wrong> AllWrong() const;
  bool HasSome(DeviceIndex device) const;

 private:
  struct Entry : LimitedSum {
    DeviceIndex device{0};
    std::string path;
    Bytes bytes = 0;
    std::vector<Owner> owners;

    Bytes SumOfOwners() const;
    Error Refusal(const ScopeAccount& account, Bytes size) const;
  };

  // The innermost limit that covers the path; `but`: not this one. nullptr if
  // there is none.
  Entry* Innermost(DeviceIndex device, std::string_view path,
                   const Entry* but = nullptr) const;
  // Who is below which, after a limit of the device came or went. Of other
  // devices, whose locks the caller need not hold, nothing is written.
  void Link(DeviceIndex device, const std::vector<Owner>& owners);

  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SCOPE_LIMITS_H_
