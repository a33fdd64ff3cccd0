// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/accounting.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>

namespace cudasim::bridge {
namespace {

std::atomic<long> bridged_calls{0};
std::atomic<long> storages_outside{0};
std::atomic<uint64_t> reservation_low{0};
std::atomic<uint64_t> reservation_high{0};  // 0: none announced
std::atomic<int (*)(uint64_t)> owner{nullptr};

}  // namespace

void CountBridgedCall() {
  bridged_calls.fetch_add(1, std::memory_order_relaxed);
  SimulatedDevice::Get().CountBridged(1);
}

long BridgedCalls() { return bridged_calls.load(std::memory_order_relaxed); }

void SetReservation(uint64_t low, uint64_t high) {
  reservation_low.store(low, std::memory_order_relaxed);
  reservation_high.store(high, std::memory_order_relaxed);
}

void SetOwner(int (*holds)(uint64_t)) {
  owner.store(holds, std::memory_order_relaxed);
}

void SeeStorage(const void* address, size_t bytes) {
  if (bytes == 0) return;
  const uint64_t high = reservation_high.load(std::memory_order_relaxed);
  const auto holds = owner.load(std::memory_order_relaxed);
  bool inside;
  if (holds != nullptr) {
    inside = holds(reinterpret_cast<uint64_t>(address)) != 0;
  } else if (high == 0) {
    inside = SimulatedDevice::Get().InArena(address);
  } else {
    const uint64_t value = reinterpret_cast<uint64_t>(address);
    inside = value >= reservation_low.load(std::memory_order_relaxed) &&
             value + bytes <= high;
  }
  if (!inside) storages_outside.fetch_add(1, std::memory_order_relaxed);
}

long StoragesOutside() {
  return storages_outside.load(std::memory_order_relaxed);
}

void AccessLog::AddSpan(const at::TensorImpl& tensor, int write) {
  if (tensor.numel() == 0) return;
  uint64_t last = 0;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  const uint64_t address = reinterpret_cast<uint64_t>(tensor.storage().data()) +
                           tensor.storage_offset() * tensor.itemsize();
  accesses_.push_back({address, (last + 1) * tensor.itemsize(), write});
}

void AccessLog::BeginSlow(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  device_ = device;
  stream_ = c10::cuda::getCurrentCUDAStream(device).stream();
  SimulatedDevice::Get().BeginOperator(stream_, name_);
}

void AccessLog::EndSlow() {
  const c10::cuda::OptionalCUDAGuard guard(
      device_ < 0 ? std::optional<c10::Device>()
                  : std::make_optional(c10::Device(c10::kCUDA, device_)));
  SimulatedDevice::Get().NoteAccess(stream_, name_, accesses_.data(),
                                    static_cast<int>(accesses_.size()));
}

}  // namespace cudasim::bridge
