// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_OUT_OF_MEMORY_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_OUT_OF_MEMORY_H_

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <vector>

#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "allocator/base/result.h"
#include "python_shim/bridge_api/blocks.h"

namespace stratalloc {

// Torch's FreeMemoryCallbacks: they release memory that other processes were
// done with. 1 if one says that it freed some. For the core, which runs them
// where native does: whenever nothing cached serves a malloc, before it takes
// memory from the driver or gives any back. Never throws: what a callback
// throws becomes a warning. Called with no lock held.
int RunFreeMemoryCallbacks();

// The end of a failing malloc: profiler, history, observers, exception.
//
// Thread-safety: all methods, any thread. Observers are called with no lock
// held: they may take the GIL or allocate.
// Lifetime: part of the allocator object, never destroyed.
class OutOfMemory {
 public:
  using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

  void Attach(Observer observer) EXCLUDES(mutex_);
#if TORCH_MINOR >= 12
  using RejectionObserver =
      c10::cuda::CUDACachingAllocator::OomRejectionObserver;
  void AttachToRejections(RejectionObserver observer) EXCLUDES(mutex_);
#endif

  // `error` is the core's answer to this malloc.
  [[noreturn]] void Throw(c10::DeviceIndex device, uint64_t size,
                          StreamId stream, MallocHint hint, const Error& error)
      EXCLUDES(mutex_);

 private:
#if TORCH_MINOR >= 12
  // kRejected: a warning, observers, and what native says.
  Error Reject(c10::DeviceIndex device, uint64_t size) EXCLUDES(mutex_);
#endif
  void Report(c10::DeviceIndex device, uint64_t size, StreamId stream,
              MallocHint hint) EXCLUDES(mutex_);

  Mutex mutex_{LockRank::kRegistry};
  std::vector<Observer> observers_ GUARDED_BY(mutex_);
#if TORCH_MINOR >= 12
  std::vector<RejectionObserver> rejection_observers_ GUARDED_BY(mutex_);
#endif
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_OUT_OF_MEMORY_H_
