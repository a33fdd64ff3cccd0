// SPDX-License-Identifier: Apache-2.0
// Accounts for tests of this room: one for kOwner, one for everybody else.
#ifndef STRATALLOC_ALLOCATOR_TWO_ACCOUNTS_TEST_H_
#define STRATALLOC_ALLOCATOR_TWO_ACCOUNTS_TEST_H_

#include <atomic>

#include "allocator/charge_account.h"

namespace stratalloc {

inline constexpr Charge kOwner{ScopeId{3}, Category::kParameter};

class TwoAccounts final : public ChargeAccounts {
 public:
  ChargeAccount& Of(DeviceIndex, Charge charge) override {
    ChargeAccount& account = charge == kOwner ? owner : other;
    account.total = &total;
    return account;
  }
  void ResetPeaks(DeviceIndex) override {}

  ChargeAccount owner, other;
  std::atomic<Bytes> total{0};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_TWO_ACCOUNTS_TEST_H_
