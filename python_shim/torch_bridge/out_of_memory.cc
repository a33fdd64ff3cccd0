// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/out_of_memory.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "python_shim/torch_bridge/bridge_error.h"

namespace stratalloc {
int RunFreeMemoryCallbacks() {
  bool freed = false;
  try {
    for (const std::string& name :
         c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
  } catch (const std::exception& e) {
    TORCH_WARN("A FreeMemoryCallback failed: ", e.what());
  }
  return freed;
}

void OutOfMemory::Attach(Observer observer) {
  MutexLock lock(mutex_);
  observers_.push_back(std::move(observer));
}

void OutOfMemory::Throw(c10::DeviceIndex device, uint64_t size, uint64_t stream,
                        const stratalloc_error& error) {
  if (error.code == STRATALLOC_OUT_OF_MEMORY) Report(device, size, stream);
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
  const uint64_t rounded =
      stratalloc_history_out_of_memory(device, stream, size, free_bytes);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(rounded),
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

}  // namespace stratalloc
