// SPDX-License-Identifier: Apache-2.0
//
// memory.h: allocation and release as both the driver and the runtime offer
// them.
//
// Thread-safety: take the simulator's lock themselves.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_MEMORY_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

// cuMemUnmap, which waits for nothing: what is still pending there is a
// violation. Where the device is set to wait (Simulator::unmap_waits), it waits
// for all work of the device, as cudaFree does, and hides such a mistake as a
// driver that waits would.
Status UnmapRange(const char* name, uint64_t address, uint64_t bytes);
// cuMemRelease.
Status ReleaseHandle(const char* name, uint64_t handle);

// cudaFree waits for the whole device first, as the real one does: freeing
// memory that is still in use is legal with it. nullptr is fine.
Status FreeDevice(const char* name, uint64_t address);

Status AllocateHost(void** pointer, size_t bytes, unsigned flags);
Status RegisterHost(void* pointer, size_t bytes, unsigned flags);
// These two do not wait: a pending copy there is a violation.
Status FreeHost(const char* name, void* pointer);
Status UnregisterHost(const char* name, void* pointer);

// "cuMemUnmap (call 12)": the call in progress, as violation texts name it.
std::string ThisCall(const char* name);

// What an address is.
enum class PointerKind { kUnknown, kDevice, kPinnedHost };
struct PointerInfo {
  PointerKind kind = PointerKind::kUnknown;
  int device = 0;
  uint64_t start = 0;
  uint64_t bytes = 0;
  bool registered = false;  // host memory the program owns
  bool host_readable = false;
  bool ipc_capable = false;   // by cudaIpcGetMemHandle
  unsigned handle_types = 0;  // to which it can be exported
};
PointerInfo DescribePointer(uint64_t address);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_MEMORY_H_
