// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_PLUGGABLE_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_PLUGGABLE_H_

#include <c10/cuda/CUDAStream.h>

#include <cstddef>

#include "python_shim/torch_bridge/base/bridge_export.h"

// The functions that torch's own CUDAPluggableAllocator is given, with the
// signatures it prescribes. It finds them by name in the file that
// stratalloc.library() returns.
//
// Two ways through: stratalloc.allocator() also sets the init function, which
// CUDA's initialisation calls before any block exists and which puts the whole
// subclass in the plugin's place. The literal constructor sets none; there
// a call that library() queues for CUDA's initialisation does it, at the latest
// the first malloc, if the allocator in torch's atomic is a pluggable one made
// of these very functions. A first malloc's block is the only one that the
// plugin frees.
//
// In a MemPool(allocator=...) the plugin is not in torch's atomic: then it
// serves unmanaged segments from cudaMalloc, which nothing evicts and which the
// pool's owner counts. No memory is NULL there, which the owner's ladder knows
// how to take.
//
// The first three throw C++ exceptions (torch turns them into Python's); they
// are not for ctypes. Any thread.
extern "C" {
STRATALLOC_BRIDGE_API void* stratalloc_malloc(size_t size, int device,
                                              cudaStream_t stream);
STRATALLOC_BRIDGE_API void stratalloc_free(void* ptr, size_t size, int device,
                                           cudaStream_t stream);
STRATALLOC_BRIDGE_API void stratalloc_pluggable_init(int device_count);
// For ctypes: see install.h. Does nothing unless our plugin is installed.
STRATALLOC_BRIDGE_API int stratalloc_torch_upgrade_plugin(char* message,
                                                          int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_PLUGGABLE_H_
