// SPDX-License-Identifier: Apache-2.0
// Accounts for tests of this room: one for kOwner, one for everybody else.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_TWO_ACCOUNTS_TEST_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_TWO_ACCOUNTS_TEST_H_

#include "allocator/values/charge_account.h"

namespace stratalloc {

inline constexpr Charge kOwner{ScopeId{3}, Category::kParameter};

class TwoAccounts final : public ChargeAccounts {
 public:
  ChargeAccount& Of(DeviceIndex, Charge charge) override {
    ChargeAccount& account = charge == kOwner ? owner : other;
    account.device = &device;
    account.scope = charge == kOwner ? &owners_scope : &others_scope;
    return account;
  }
  void ResetPeaks(DeviceIndex) override {}
  Status Admit(DeviceIndex, const ChargeAccount& account, Bytes size) override {
    if (Read(account.scope->live) + size <= may_own) return {};
    return Fail(ErrorCode::kLimited, "may not");
  }

  ChargeAccount owner, other;
  ScopeAccount owners_scope, others_scope;
  DeviceAccount device;
  Bytes may_own = 0;  // of a limited scope
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_TWO_ACCOUNTS_TEST_H_
