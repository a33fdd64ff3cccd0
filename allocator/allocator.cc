// SPDX-License-Identifier: Apache-2.0
#include "allocator/allocator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace stratalloc {

constinit std::array<Allocator::Freed, Allocator::kRemembered>
    Allocator::freed_{};

Allocator& Allocator::Get() {
  static Allocator* allocator = new Allocator;
  return *allocator;
}

Status Allocator::Init(int count, const DeviceAllocator::Options& options,
                       const std::function<Status(DeviceAllocator&)>& plug) {
  if (count > kMaxDevices) {
    return Fail(ErrorCode::kUnsupported,
                std::to_string(count) + " devices; at most " +
                    std::to_string(kMaxDevices) +
                    " are supported: hide some with CUDA_VISIBLE_DEVICES");
  }
  MutexLock lock(mutex_);
  for (int i = count_.load(); i < count; ++i) {
    STRATALLOC_ASSIGN_OR_RETURN(Device device,
                                Device::Open(static_cast<DeviceIndex>(i)));
    STRATALLOC_ASSIGN_OR_RETURN(std::unique_ptr<DeviceAllocator> created,
                                DeviceAllocator::Create(device, options));
    STRATALLOC_RETURN_IF_ERROR(plug(*created));
    // release: whoever sees the count sees the pointer and what it points to.
    devices_[i].store(created.release(), std::memory_order_release);
    count_.store(i + 1, std::memory_order_release);
  }
  return {};
}

DeviceAllocator* Allocator::Find(DeviceIndex device) const {
  const int index = static_cast<int>(device);
  if (index < 0 || index >= device_count()) return nullptr;
  return devices_[index].load(std::memory_order_acquire);
}

DeviceAllocator* Allocator::FindByAddress(Address address) const {
  const int count = device_count();
  for (int i = 0; i < count; ++i) {
    DeviceAllocator* device = devices_[i].load(std::memory_order_acquire);
    if (device->Contains(address)) return device;
  }
  for (int i = 0; i < count; ++i) {
    DeviceAllocator* device = devices_[i].load(std::memory_order_acquire);
    if (device->ContainsPlain(address)) return device;
  }
  return nullptr;
}

bool Allocator::LastOwner(Address address, Charge* charge) const {
  const Freed& slot = freed_[(address / kMinBlockSize) % kRemembered];
  if (slot.address.load(std::memory_order_relaxed) != address) return false;
  const std::uint64_t packed = slot.charge.load(std::memory_order_relaxed);
  charge->scope = ScopeId{static_cast<std::uint32_t>(packed >> 8)};
  charge->category = static_cast<Category>(packed & 0xff);
  return true;
}

void Allocator::ShutdownForTesting() {
  MutexLock lock(mutex_);
  const int count = count_.exchange(0);
  for (int i = 0; i < count; ++i) delete devices_[i].exchange(nullptr);
}

}  // namespace stratalloc
