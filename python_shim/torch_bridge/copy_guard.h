// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COPY_GUARD_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COPY_GUARD_H_

#include <ATen/core/Tensor.h>

namespace stratalloc {

// Tensor.copy_ is the one operator whose previous kernel must be called
// unboxed: the kernel below it may have no boxed form, and calling that boxed
// jumps to null. It also carries every copy between host and device.

inline constexpr char kCopyName[] = "aten::copy_";

// Decides what GuardedCopy calls: the kernel of the simulated device's operator
// bridge if that library is loaded, else torch's own. Before the guard is
// registered, by the installing thread.
void ChoosePreviousCopy();

// The kernel at the CUDA key.
at::Tensor& GuardedCopy(at::Tensor& self, const at::Tensor& from,
                        bool non_blocking);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COPY_GUARD_H_
