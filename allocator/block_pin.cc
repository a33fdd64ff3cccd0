// SPDX-License-Identifier: Apache-2.0
// Who takes pins back by itself; and what is asked of a device's pins.
#include "allocator/block_pin.h"

#include <atomic>
#include <vector>

#include "allocator/device_allocator.h"

namespace stratalloc {
namespace {

std::atomic<PinPoll::Poll> current{nullptr};
std::atomic<PinPoll::Asked> under_way{nullptr};
thread_local bool running = false;

}  // namespace

void PinPoll::Use(Poll poll, Asked asked) {
  under_way.store(asked, std::memory_order_release);
  current.store(poll, std::memory_order_release);
}

void PinPoll::Run() {
  const Poll poll = current.load(std::memory_order_acquire);
  if (poll == nullptr) return;
  running = true;
  poll();
  running = false;
}

bool PinPoll::UnderWay() {
  const Asked asked = under_way.load(std::memory_order_acquire);
  return asked != nullptr && asked() != 0;
}

bool PinPoll::IsRunning() { return running; }

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
