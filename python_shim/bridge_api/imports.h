// SPDX-License-Identifier: Apache-2.0
// Access to memory of other processes: ipc.cc has it, devices.cc grants it.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_IMPORTS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_IMPORTS_H_

#include "allocator/base/ids.h"
#include "allocator/base/result.h"

namespace stratalloc {

// Access for `peer` to all memory of other processes that is mapped on
// `owner`. Takes the lock of rank kImports. Any thread.
Status GrantImports(DeviceIndex owner, DeviceIndex peer);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_IMPORTS_H_
