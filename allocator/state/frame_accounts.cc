// SPDX-License-Identifier: Apache-2.0
#include "allocator/state/frame_accounts.h"

#include <utility>

namespace stratalloc {

FrameAccounts& FrameAccounts::Get() {
  static FrameAccounts* const accounts = new FrameAccounts();
  return *accounts;
}

FrameId FrameAccounts::Begin(DeviceIndex device, ScopeId scope) {
  if (abandoned_.load(std::memory_order_relaxed)) return 0;
  FrameId id;
  {
    MutexLock lock(mutex_);
    if (free_ != 0) {
      id = std::exchange(free_, at(free_).next);
    } else if (made_ == kMost) {
      return 0;
    } else {
      id = made_++;
      if (chunks_[id / kChunk].load(std::memory_order_relaxed) == nullptr) {
        chunks_[id / kChunk].store(new FrameAccount[kChunk],
                                   std::memory_order_release);
      }
    }
  }
  FrameAccount& account = at(id);
  account.device = device;
  account.scope = scope;
  account.ended = false;
  account.next = 0;
  return id;
}

void FrameAccounts::Recycle(FrameId id) {
  MutexLock lock(mutex_);
  at(id).next = std::exchange(free_, id);
}

}  // namespace stratalloc
