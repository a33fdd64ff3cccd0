// SPDX-License-Identifier: Apache-2.0
// Device memory that no block of ours covers: straight from cudaMalloc, on the
// calling thread's current device. For what torch hands out while its caching
// is switched off and for the segments of its MemPool(allocator=...).
//
// Each function returns the cudaError_t of its call as a number, which torch
// turns into its own exception, and leaves no error behind for torch's next
// cudaGetLastError. 35 (cudaErrorInsufficientDriver) if the process has no
// CUDA. Thread-safety: any thread, no lock taken. UncachedFree and UncachedCopy
// wait for the device.
#ifndef STRATALLOC_ALLOCATOR_CUDA_UNCACHED_H_
#define STRATALLOC_ALLOCATOR_CUDA_UNCACHED_H_

#include "allocator/base/bytes.h"

namespace stratalloc {

int UncachedMalloc(Bytes bytes, void** out);
int UncachedFree(void* address);
// Device to device, complete on return.
int UncachedCopy(void* to, const void* from, Bytes bytes);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_UNCACHED_H_
