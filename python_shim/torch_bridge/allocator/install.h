// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_INSTALL_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_INSTALL_H_

#include <c10/cuda/CUDACachingAllocator.h>
#include <stdint.h>

#include "python_shim/torch_bridge/base/bridge_export.h"

namespace stratalloc {

class TorchAllocator;

// The one allocator object; made at the first call, never destroyed.
TorchAllocator* BridgeAllocator();

// Is that object the one in torch's atomic?
bool IsCurrentAllocator();

// Puts it there and into c10's registry, whatever is there.
void SwapInAllocator();

// Torch's own allocator: what was in the atomic before the swap, else what
// c10's registry holds at priority 0. Null if neither is native's.
c10::cuda::CUDACachingAllocator::CUDAAllocator* NativeAllocator();

}  // namespace stratalloc

// What Python calls through ctypes. Unless a comment says otherwise: returns 0
// on success, else 1 (2: out of memory) with the reason in `message` (may be
// NULL), and never throws. Installing belongs to one thread, before CUDA is
// used.
extern "C" {

// The torch minor this library was compiled for: 211 for 2.11. A library for
// the wrong minor may load without an error, so the caller compares first.
STRATALLOC_BRIDGE_API int stratalloc_torch_built_for(void);

// Is torch what this library was compiled for (torch_layout.h)? Before any
// other function. Changes nothing.
STRATALLOC_BRIDGE_API int stratalloc_torch_check(char* message, int bytes);

// Puts our allocator into torch's atomic and into c10's registry (where
// torch.accelerator looks), before CUDA is initialised. Refuses, changing
// nothing, if the allocator there is not native's or is already in use.
// Calling it again is fine.
STRATALLOC_BRIDGE_API int stratalloc_torch_install(char* message, int bytes);
STRATALLOC_BRIDGE_API int stratalloc_torch_is_current(void);  // 0 or 1

// The program has told torch's allocator something: reads what.
STRATALLOC_BRIDGE_API void stratalloc_torch_note_settings(void);
/* The level of telemetry changed (stratalloc_set_telemetry). */
STRATALLOC_BRIDGE_API void stratalloc_torch_note_telemetry(void);

// The native allocator's object, for comparisons; NULL if there is none.
STRATALLOC_BRIDGE_API void* stratalloc_torch_native(void);
STRATALLOC_BRIDGE_API int stratalloc_torch_native_init(int device_count,
                                                       char* message,
                                                       int bytes);

// For tests: what no Python call reaches.
// stratalloc_torch_check for another version (torch_layout.h) or allocator.
STRATALLOC_BRIDGE_API int stratalloc_torch_check_as(uint64_t version,
                                                    void* native, char* message,
                                                    int bytes);
STRATALLOC_BRIDGE_API int stratalloc_torch_cache_info(int device,
                                                      uint64_t* largest,
                                                      char* message, int bytes);
STRATALLOC_BRIDGE_API double stratalloc_torch_config_fraction(void);
// 1 if a DataPtr of `size` bytes from allocate() has raw_deleter() as deleter
// and its data as context (which is null for size 0).
STRATALLOC_BRIDGE_API int stratalloc_torch_deleter_is_plain(uint64_t size,
                                                            char* message,
                                                            int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_INSTALL_H_
