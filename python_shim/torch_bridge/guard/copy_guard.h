// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_COPY_GUARD_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_COPY_GUARD_H_

#include <ATen/core/Tensor.h>

namespace stratalloc {

// Tensor.copy_ carries every copy between host and device, and torch has no
// kernel of it at the CUDA key: its own lies at an alias key, has no boxed form
// there, and boxed calls of it jump to null. So the guard of torch's own is
// this one, for nothing else: a kernel that somebody registered for CUDA (a
// simulated device, a library) is guarded as every other operator's is.

inline constexpr char kCopyName[] = "aten::copy_";

// To be registered at the CUDA key. Calls torch's own kernel.
at::Tensor& GuardedCopy(at::Tensor& self, const at::Tensor& from,
                        bool non_blocking);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_COPY_GUARD_H_
