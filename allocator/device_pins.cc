// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: pins that outlast an operator, under the device lock.
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/values/block_pin.h"

namespace stratalloc {

BlockPin DeviceAllocator::PinBlock(Address address, PinReason reason) {
  MutexLock lock(p_.mutex);
  return p_.pins.Pin(address, reason);
}

bool DeviceAllocator::UnpinBlock(const BlockPin& pin, bool unobserved) {
  MutexLock lock(p_.mutex);
  return p_.pins.Unpin(pin, unobserved);
}

bool DeviceAllocator::IsPinned(const BlockPin& pin) {
  MutexLock lock(p_.mutex);
  return p_.pins.IsPinned(pin);
}

bool DeviceAllocator::KeepsPointer(Address address) {
  MutexLock lock(p_.mutex);
  return p_.pins.KeepsPointer(address);
}

bool DeviceAllocator::DropOldPointers(Bytes bytes, std::size_t count) {
  MutexLock lock(p_.mutex);
  return p_.pins.DropOldPointers(bytes, count);
}

std::vector<PinnedBytes> DeviceAllocator::Pinned() {
  MutexLock lock(p_.mutex);
  return p_.pins.All();
}

}  // namespace stratalloc
