// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/out_of_memory.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "allocator/base/bytes.h"
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
  Error answer = error;
#if TORCH_MINOR >= 12
  if (error.code == ErrorCode::kRejected) {
    answer = Reject(device, size);
  } else
#endif
      if (error.code == ErrorCode::kOutOfMemory) {
    Report(device, size, stream, hint);
  } else {
    ThrowError(error);
  }
  // Behind torch's observers, so that nothing that they do is missed.
  {
    const BetweenNodes between;
    answer.message +=
        core::TellRefusedMalloc(device, size, stream, hint, answer.message);
  }
  ThrowError(answer);
}

#if TORCH_MINOR >= 12
void OutOfMemory::AttachToRejections(RejectionObserver observer) {
  MutexLock lock(mutex_);
  rejection_observers_.push_back(std::move(observer));
}

Error OutOfMemory::Reject(c10::DeviceIndex device, uint64_t size) {
  const DeviceStats stats = core::Stats(device).value_or(DeviceStats{});
  const MemoryInfo card =
      core::GetMemoryInfo(device).value_or(MemoryInfo{0, 0});
  const auto reserved =
      static_cast<Bytes>(stats.reserved_bytes.stats[0].current);
  LOG(WARNING) << "stratalloc: rejecting an allocation of " << FormatBytes(size)
               << ": with the " << FormatBytes(reserved)
               << " that are reserved it would exceed "
                  "per_process_memory_fraction of the "
               << FormatBytes(card.total)
               << " there are. Set throw_on_cudamalloc_oom:False to disable.";
  std::vector<RejectionObserver> observers;
  {
    MutexLock lock(mutex_);
    observers = rejection_observers_;
  }
  for (const RejectionObserver& observer : observers) {
    try {
      observer(device, size, reserved, card.total);
    } catch (const std::exception& e) {
      LOG(ERROR) << "Exception in OOM rejection observer: " << e.what();
    }
  }
  return {ErrorCode::kOutOfMemory,
          "CUDA out of memory. Allocation was preemptively rejected because it "
          "would exceed per_process_memory_fraction limit. Requested size: " +
              FormatBytes(size)};
}
#endif

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
