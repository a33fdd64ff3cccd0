// SPDX-License-Identifier: Apache-2.0
// Whole devices: what of their memory may be used, access from one to another,
// copies, and memory past the cache. For threads and failure see setup.h;
// functions that return an int return the cudaError_t of their call.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_DEVICES_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_DEVICES_H_

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/values/memory_info.h"

namespace stratalloc::core {

// The driver's answer; makes a context there.
STRATALLOC_API Result<MemoryInfo> GetMemoryInfo(int device);
STRATALLOC_API double MemoryFraction(int device);
STRATALLOC_API Status SetMemoryFraction(int device, double fraction);
// What gpu_limit and the memory fraction leave of `total`.
STRATALLOC_API Bytes AllowedMemory(int device, Bytes total);

// `device` shall be able to read memory of `peer`, as torch says it.
STRATALLOC_API Status EnablePeerAccess(int device, int peer);
STRATALLOC_API int CopyPeer(Address to, int to_device, Address from,
                            int from_device, Bytes bytes, StreamId stream,
                            bool p2p_enabled);
// Device to device on the current context, complete on return. What is away is
// brought back for it.
STRATALLOC_API int CopyData(Address to, Address from, Bytes bytes);

// cudaMalloc on the current device and cudaFree, in no statistic: caching
// switched off, and the unmanaged segments of a MemPool(allocator=...). Work
// before Init. The runtime's own last error is cleared; a size of 0 gives
// nullptr.
STRATALLOC_API int UncachedMalloc(Bytes size, void** out);
STRATALLOC_API int UncachedFree(void* ptr);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_DEVICES_H_
