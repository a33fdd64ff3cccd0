// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BOTH_ALLOCATORS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BOTH_ALLOCATORS_H_

#include <c10/cuda/CUDACachingAllocator.h>

#include "python_shim/torch_bridge/allocator/install.h"

namespace stratalloc {

// Ours (native = 0), which has to be torch's, or torch's own. Throws where
// there is no such one.
inline c10::cuda::CUDACachingAllocator::CUDAAllocator* AllocatorFor(
    int native) {
  if (native == 0) {
    TORCH_CHECK(stratalloc_torch_is_current() == 1,
                "stratalloc is not torch's allocator here: call "
                "stratalloc.enable() first");
    return c10::cuda::CUDACachingAllocator::get();
  }
  auto* const found =
      static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(
          stratalloc_torch_native());
  TORCH_CHECK(found != nullptr, "the native allocator was not found");
  return found;
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BOTH_ALLOCATORS_H_
