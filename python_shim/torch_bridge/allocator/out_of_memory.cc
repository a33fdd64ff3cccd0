// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/out_of_memory.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "python_shim/bridge_api/devices.h"
#include "python_shim/bridge_api/statistics.h"
#include "python_shim/torch_bridge/autograd/backward_scopes.h"
#include "python_shim/torch_bridge/base/bridge_error.h"

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

void OutOfMemory::Throw(c10::DeviceIndex device, uint64_t size, StreamId stream,
                        MallocHint hint, const Error& error) {
  if (error.code != ErrorCode::kOutOfMemory) ThrowError(error);
  Report(device, size, stream, hint);
  // Behind torch's observers, so that nothing that they do is missed.
  Error told = error;
  {
    const BetweenNodes between;
    told.message +=
        core::TellRefusedMalloc(device, size, stream, hint, error.message);
  }
  ThrowError(told);
}

void OutOfMemory::Report(c10::DeviceIndex device, uint64_t size,
                         StreamId stream, MallocHint hint) {
  // A failing query leaves zeros: the error that is on its way matters more.
  const DeviceStats stats = core::Stats(device).value_or(DeviceStats{});
  const MemoryInfo card =
      core::GetMemoryInfo(device).value_or(MemoryInfo{0, 0});
  const Bytes rounded = [&] {
    const BetweenNodes between;  // or nobody knows whose backward it is
    return core::RecordOutOfMemory(device, size, stream, hint, card.free);
  }();
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(rounded),
                                   stats.allocated_bytes.stats[0].current,
                                   stats.reserved_bytes.stats[0].current,
                                   c10::Device(c10::DeviceType::CUDA, device));

  std::vector<Observer> observers;
  {
    MutexLock lock(mutex_);
    observers = observers_;
  }
  const auto allowed =
      static_cast<size_t>(core::AllowedMemory(device, card.total));
  for (const Observer& observer : observers) {
    observer(device, size, allowed, card.free);
  }
}

}  // namespace stratalloc
