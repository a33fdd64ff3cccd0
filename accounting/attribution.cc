// SPDX-License-Identifier: Apache-2.0
#include "accounting/attribution.h"

namespace stratalloc::internal {

FrameId BeginFrameAccount(DeviceIndex device, ScopeId payer) {
  FrameAccounts& accounts = FrameAccounts::Get();
  const FrameId id = accounts.Begin(device, payer);
  if (id == 0) return 0;
  accounts.at(id).next = CurrentScope().account;
  SetFrameAccount(id);
  return id;
}

}  // namespace stratalloc::internal
