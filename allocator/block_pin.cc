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
  MutexLock lock(mutex_);
  return pins_.Pin(address, reason);
}

bool DeviceAllocator::UnpinBlock(const BlockPin& pin, bool unobserved) {
  MutexLock lock(mutex_);
  return pins_.Unpin(pin, unobserved);
}

bool DeviceAllocator::IsPinned(const BlockPin& pin) {
  MutexLock lock(mutex_);
  return pins_.IsPinned(pin);
}

bool DeviceAllocator::KeepsPointer(Address address) {
  MutexLock lock(mutex_);
  return pins_.KeepsPointer(address);
}

bool DeviceAllocator::DropOldPointers(Bytes bytes, std::size_t count) {
  MutexLock lock(mutex_);
  return pins_.DropOldPointers(bytes, count);
}

std::vector<PinnedBytes> DeviceAllocator::Pinned() {
  MutexLock lock(mutex_);
  return pins_.All();
}

}  // namespace stratalloc
