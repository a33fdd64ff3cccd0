// SPDX-License-Identifier: Apache-2.0
// The devices that are opened: by ordinal, by address, and in the order of
// opening. The process has one, which lies still from its start, so that a
// malloc and a free find their device without a call.
//
// Thread-safety: one Add at a time (Allocator::Open's lock); finding from any
// thread, without a lock. Forget in the child of a fork, where there is one
// thread; from there on nothing is found.
// Lifetime: a device stays until Forget; nobody here owns it.
#ifndef STRATALLOC_ALLOCATOR_OPENED_DEVICES_H_
#define STRATALLOC_ALLOCATOR_OPENED_DEVICES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <span>

#include "allocator/device_allocator.h"

namespace stratalloc {

class OpenedDevices {
 public:
  constexpr OpenedDevices() = default;
  OpenedDevices(const OpenedDevices&) = delete;
  OpenedDevices& operator=(const OpenedDevices&) = delete;

  // nullptr for one that is not opened, and for no device at all. One load.
  DeviceAllocator* Find(int ordinal) const {
    if (static_cast<unsigned>(ordinal) >= unsigned{kMaxDevices}) return nullptr;
    return by_ordinal_[static_cast<std::size_t>(ordinal)].load(
        std::memory_order_acquire);
  }
  // The device whose reservation holds `address`, or nullptr.
  DeviceAllocator* OwnerOf(Address address) const {
    for (DeviceAllocator* const device : InOrder()) {
      if (device->Contains(address)) return device;
    }
    return nullptr;
  }
  // In the order in which they were opened.
  std::span<DeviceAllocator* const> InOrder() const {
    // acquire: below the count there are pointers and what they point to.
    return {in_order_.data(), count_.load(std::memory_order_acquire)};
  }

  // REQUIRES: no device of this ordinal is there.
  void Add(DeviceAllocator& device) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    in_order_[count] = &device;
    // release: whoever sees the pointer, or the count, sees what it points to.
    by_ordinal_[static_cast<std::size_t>(device.device().index())].store(
        &device, std::memory_order_release);
    count_.store(count + 1, std::memory_order_release);
  }
  void Forget() {
    count_.store(0);
    for (auto& device : by_ordinal_) device.store(nullptr);
  }

 private:
  std::array<std::atomic<DeviceAllocator*>, kMaxDevices> by_ordinal_{};
  std::array<DeviceAllocator*, kMaxDevices> in_order_{};
  std::atomic<std::size_t> count_{0};
};

// The process's. Static and read in place: Allocator::Get is a call.
extern constinit OpenedDevices opened_devices;

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_OPENED_DEVICES_H_
