// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes. For threads and failure see setup.h.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_IPC_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_IPC_H_

#include <cstdint>
#include <string_view>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/result.h"
#include "allocator/values/shared_block.h"

namespace stratalloc::core {

// The bytes by which another process maps the block at `address`, in native's
// format, and where the block begins in what that process maps. The block stays
// on the device until it is freed. Waits as an operator does.
STRATALLOC_API Result<SharedBlock> ShareBlock(Address address);

// Memory of another process, mapped here.
struct OpenedMemory {
  Address address = 0;
  std::uint64_t token = 0;
};
// Maps such bytes on `device`. Every open needs a close of its own, of the same
// token, once nothing uses the memory any more; close waits for the device.
STRATALLOC_API Result<OpenedMemory> OpenShared(int device,
                                               std::string_view handle);
STRATALLOC_API Status CloseShared(std::uint64_t token);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_IPC_H_
