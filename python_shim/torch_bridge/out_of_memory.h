// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_OUT_OF_MEMORY_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_OUT_OF_MEMORY_H_

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "allocator/base/mutex.h"
#include "python_shim/c_api.h"

namespace stratalloc {

// The last rung of a failing malloc: torch's FreeMemoryCallbacks (they release
// memory that other processes were done with) with one more try, then the
// report: profiler, observers, exception.
//
// Thread-safety: all methods, any thread. Observers are called with no lock
// held: they may take the GIL or allocate.
// Lifetime: part of the allocator object, never destroyed.
class OutOfMemory {
 public:
  using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

  void Attach(Observer observer) EXCLUDES(mutex_);

  // `error` is the core's answer to a malloc of `size` on `stream`. Returns
  // with *block filled if a callback made room, else throws.
  void RetryOrThrow(c10::DeviceIndex device, uint64_t size, uint64_t stream,
                    int hint, stratalloc_block* block,
                    const stratalloc_error& error) EXCLUDES(mutex_);

  // Failures of the core that a callback rescued: no out of memory for the
  // user, so they do not count in num_ooms.
  int64_t Rescued(c10::DeviceIndex device) const;
  void ForgetRescued(c10::DeviceIndex device);

 private:
  void Report(c10::DeviceIndex device, uint64_t size, uint64_t stream)
      EXCLUDES(mutex_);

  Mutex mutex_{LockRank::kRegistry};
  std::vector<Observer> observers_ GUARDED_BY(mutex_);
  std::array<std::atomic<int64_t>, 128> rescued_{};  // by device
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_OUT_OF_MEMORY_H_
