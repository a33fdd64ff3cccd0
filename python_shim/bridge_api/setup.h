// SPDX-License-Identifier: Apache-2.0
// What the core is told when CUDA and torch's options are there.
//
// This folder is all that the torch bridge may call: C++ with the core's own
// types, since both come from one compiler and one wheel (README.md of the
// room). It includes no header of CUDA and no allocator. For every function of
// it: any thread, with or without the GIL; what fails says so by its Result or
// Status, and nothing throws.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_SETUP_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_SETUP_H_

#include <cstddef>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/result.h"

namespace stratalloc::core {

// CUDA was initialised with so many devices. Opens none of them: a device is
// opened by the first allocation on it, the first private pool, memory of
// another process or peer access. Whoever asks about a device that is not
// opened gets zeros; what is set for it holds when it is. Idempotent.
STRATALLOC_API Status Init(int device_count);
STRATALLOC_API bool IsInitialized();
STRATALLOC_API int DeviceCount();  // 0 before Init

// Where torch keeps the options of PYTORCH_ALLOC_CONF, which are read at every
// use (allocator/state/settings.h). The functions may be called under locks.
struct TorchSettings {
  const std::size_t* divisions;  // 16 of them
  Bytes (*max_split_size)();
  Bytes (*max_non_split_rounding)();
  Bytes (*large_segment_size)();
  double (*collection_threshold)();
  // The program said expandable_segments:False.
  bool (*unmanaged_segments)();
  // 0, or the share beyond which throw_on_cudamalloc_oom rejects; nullptr:
  // torch has no such option.
  double (*rejection_share)();
  // Frees memory that others were done with; whether there was any. Called
  // without a lock whenever nothing cached serves a malloc.
  int (*free_memory)();
  // Of the handles that this torch sends to other processes (allocator/ipc.h).
  int share_version = 2;
};
STRATALLOC_API void UseSettings(const TorchSettings& settings);

// Registers the source of libraries' workspaces
// (allocator/state/workspaces.h): `list` calls each(context, address) for the
// base of every one, and returns 0 if it cannot tell now. It is called without
// the device lock, from any thread; nullptr unregisters it.
STRATALLOC_API void UseWorkspaces(
    int (*list)(void (*each)(void* context, void* address), void* context));

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_SETUP_H_
