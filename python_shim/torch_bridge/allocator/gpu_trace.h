// SPDX-License-Identifier: Apache-2.0
// What torch's CUDA sanitizer hears of memory, as from native: whoever hands
// some out or takes it back says so here. Python runs only while somebody
// listens (c10::impl::GPUTrace), and takes the GIL then: not under a lock.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_GPU_TRACE_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_GPU_TRACE_H_

#include <c10/core/impl/GPUTrace.h>

#include <cstdint>

namespace stratalloc {

inline void TraceAllocation(void* ptr) {
  if (C10_LIKELY(!c10::impl::GPUTrace::haveState)) return;
  if (const auto* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_allocation(c10::DeviceType::CUDA,
                                          reinterpret_cast<uintptr_t>(ptr));
  }
}

inline void TraceDeallocation(void* ptr) {
  if (C10_LIKELY(!c10::impl::GPUTrace::haveState)) return;
  if (const auto* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA,
                                            reinterpret_cast<uintptr_t>(ptr));
  }
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_GPU_TRACE_H_
