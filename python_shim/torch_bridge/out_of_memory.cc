// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/out_of_memory.h"

#include <algorithm>
#include <utility>

#include "python_shim/torch_bridge/bridge_error.h"

namespace stratalloc {
namespace {

bool RunFreeMemoryCallbacks() {
  bool freed = false;
  for (const std::string& name :
       c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}

}  // namespace

void OutOfMemory::Attach(Observer observer) {
  MutexLock lock(mutex_);
  observers_.push_back(std::move(observer));
}

void OutOfMemory::RetryOrThrow(c10::DeviceIndex device, uint64_t size,
                               uint64_t stream, int hint,
                               stratalloc_block* block,
                               const stratalloc_error& error) {
  if (error.code != STRATALLOC_OUT_OF_MEMORY) ThrowError(error);
  if (RunFreeMemoryCallbacks()) {
    stratalloc_error again;
    if (stratalloc_malloc(device, size, stream, hint, block, &again) == 0) {
      rescued_[device].fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (again.code != STRATALLOC_OUT_OF_MEMORY) ThrowError(again);
    // One failure for the user, two for the core.
    rescued_[device].fetch_add(1, std::memory_order_relaxed);
    Report(device, size, stream);
    ThrowError(again);
  }
  Report(device, size, stream);
  ThrowError(error);
}

void OutOfMemory::Report(c10::DeviceIndex device, uint64_t size,
                         uint64_t stream) {
  stratalloc_device_stats stats{};
  uint64_t free_bytes = 0;
  uint64_t total = 0;
  // A failing query leaves zeros: the error that is on its way matters more.
  stratalloc_stats(device, &stats, nullptr);
  stratalloc_memory_info(device, &free_bytes, &total, nullptr);
  stratalloc_history_out_of_memory(device, stream, size, free_bytes);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size),
                                   stats.allocated_bytes[0].current,
                                   stats.reserved_bytes[0].current,
                                   c10::Device(c10::DeviceType::CUDA, device));

  std::vector<Observer> observers;
  {
    MutexLock lock(mutex_);
    observers = observers_;
  }
  const double fraction = std::min(stratalloc_memory_fraction(device), 1.0);
  const auto allowed =
      fraction < 1.0
          ? static_cast<size_t>(fraction * static_cast<double>(total))
          : static_cast<size_t>(total);
  for (const Observer& observer : observers) {
    observer(device, size, allowed, free_bytes);
  }
}

int64_t OutOfMemory::Rescued(c10::DeviceIndex device) const {
  return rescued_[device].load(std::memory_order_relaxed);
}

void OutOfMemory::ForgetRescued(c10::DeviceIndex device) {
  rescued_[device].store(0, std::memory_order_relaxed);
}

}  // namespace stratalloc
