// SPDX-License-Identifier: Apache-2.0
// Mark of the functions that the bridge's library shows: the C functions that
// Python calls through ctypes, and those that other libraries of ours call.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_BRIDGE_EXPORT_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_BRIDGE_EXPORT_H_

#define STRATALLOC_BRIDGE_API __attribute__((visibility("default")))

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_BRIDGE_EXPORT_H_
