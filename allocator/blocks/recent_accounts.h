// SPDX-License-Identifier: Apache-2.0
// The accounts of one device that were charged last, so that a malloc need not
// ask accounting for the one it adds to.
//
// Thread-safety: the caller holds the device lock, but for Use, which comes
// before the first malloc. Lifetime: the device's; the accounts outlive it.
// Nothing here can fail.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_RECENT_ACCOUNTS_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_RECENT_ACCOUNTS_H_

#include "allocator/base/ids.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

class RecentAccounts {
 public:
  explicit RecentAccounts(DeviceIndex device) : device_(device) {}

  // nullptr: nobody keeps accounts.
  void Use(ChargeAccounts* accounts) { accounts_ = accounts; }
  // nullptr if nobody does.
  ChargeAccount* Of(Charge charge) {
    if (accounts_ == nullptr) return nullptr;
    charge.frame = 0;  // frames have the same one
    Recent& recent =
        recent_[(Raw(charge.scope) * kCategories + Raw(charge.category)) %
                kRecent];
    if (recent.account == nullptr || !(recent.charge == charge)) {
      recent = {charge, &accounts_->Of(device_, charge)};
    }
    return recent.account;
  }
  bool IsLimited(Charge charge) {
    const ChargeAccount* const account = Of(charge);
    return account != nullptr &&
           account->scope->limited.load(std::memory_order_relaxed) != nullptr;
  }
  // May this many bytes more be charged?
  Status Admit(Charge charge, Bytes size) {
    if (!IsLimited(charge)) return {};
    return accounts_->Admit(device_, *Of(charge), size);
  }
  void ResetPeaks() {
    if (accounts_ != nullptr) accounts_->ResetPeaks(device_);
  }

 private:
  static constexpr int kRecent = 32;
  struct Recent {
    Charge charge;
    ChargeAccount* account = nullptr;
  };

  const DeviceIndex device_;
  ChargeAccounts* accounts_ = nullptr;
  Recent recent_[kRecent];  // by hash
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_RECENT_ACCOUNTS_H_
