// SPDX-License-Identifier: Apache-2.0
// Who uses a device's memory, as NVML tells: for the text of an out of memory.
//
// NVML is a convenience here. Where its library is missing, refuses, knows no
// memory of a process (WSL, MIG) or lists nobody, the answer is shorter or
// empty, and nothing is printed: the error that is on its way matters more.
//
// Thread-safety: any thread. Locks: none may be held, since the first call
// loads a library and every call asks the driver. Fails: never.
#ifndef STRATALLOC_ALLOCATOR_CUDA_NVML_H_
#define STRATALLOC_ALLOCATOR_CUDA_NVML_H_

#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"

namespace stratalloc {

struct ProcessMemory {
  unsigned pid;
  Bytes bytes;
};

// In NVML's order.
std::vector<ProcessMemory> ProcessesOn(DeviceIndex device);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_NVML_H_
