// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_OP_GUARD_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_OP_GUARD_H_

#include "python_shim/torch_bridge/base/bridge_export.h"

// The op guard: a kernel of ours in front of every operator that has one for
// CUDA tensors. It makes the bytes of the tensor arguments resident, pins them
// until the operator returns, then calls the kernel that was there before. A
// failed restore is an exception of the operator that needed the bytes, before
// anything was launched, in the thread that called it (autograd threads too).
//
// Dispatch tables are not written atomically: install before other threads run
// operators, which means before CUDA is used. While nothing is evictable the
// guard is one load and a call through. What it cannot see is in README.md.
extern "C" {

// Guards every operator with a kernel at CUDA, SparseCUDA, SparseCsrCUDA,
// QuantizedCUDA or NestedTensorCUDA, and from now on each operator that some
// library defines later. Idempotent. Returns 0, or 1 with the reason.
STRATALLOC_BRIDGE_API int stratalloc_torch_install_guard(char* message,
                                                         int bytes);
// Guards operators whose CUDA kernel was replaced since (torch.library's
// impl() over an existing operator puts itself in front of the guard). Returns
// 0, or 1 with the reason. Same rule about other threads.
STRATALLOC_BRIDGE_API int stratalloc_torch_rescan_guard(char* message,
                                                        int bytes);
// Takes the guard away; operators defined later keep a pass-through.
STRATALLOC_BRIDGE_API void stratalloc_torch_remove_guard(void);

// How many (operator, key) pairs are guarded now, how many of them without
// boxing (typed_guard.h), and how many operators that were defined after the
// installation.
STRATALLOC_BRIDGE_API int stratalloc_torch_guarded(void);
STRATALLOC_BRIDGE_API int stratalloc_torch_guarded_typed(void);
STRATALLOC_BRIDGE_API int stratalloc_torch_guarded_late(void);
// 1 if the kernel that a call of `name` ("aten::add.Tensor") with CUDA tensors
// reaches first is the guard's.
STRATALLOC_BRIDGE_API int stratalloc_torch_is_guarded(const char* name);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_OP_GUARD_H_
