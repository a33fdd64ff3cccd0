// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/handed_pointers.h"

namespace stratalloc {

void HandedPointers::Add(DeviceAllocator& device, const BlockPin& pin,
                         Bytes bytes) {
  const Bytes most = device.limit() / kShare;
  MutexLock lock(mutex_);
  handed_.push_back({&device, pin, bytes});
  bytes_ += bytes;
  while (handed_.size() > 1 && (bytes_ > most || handed_.size() > kMost)) {
    DropOldestLocked();
  }
}

bool HandedPointers::LetGo() {
  MutexLock lock(mutex_);
  if (handed_.empty()) return false;
  while (!handed_.empty()) DropOldestLocked();
  return true;
}

Bytes HandedPointers::bytes() {
  MutexLock lock(mutex_);
  return bytes_;
}

void HandedPointers::DropOldestLocked() {
  const Handed& oldest = handed_.front();
  oldest.device->UnpinBlock(oldest.pin, /*unobserved=*/true);
  bytes_ -= oldest.bytes;
  handed_.pop_front();
}

}  // namespace stratalloc
