// SPDX-License-Identifier: Apache-2.0
//
// copy_ at the CUDA dispatch key: host to device, device to host, device to
// device, with or without a change of type or layout.
//
// A copy of the same bytes in the same order goes through the CUDA runtime on
// the current stream, as PyTorch does it: pinned, asynchronous and cross-stream
// behaviour is then the simulated device's, not ours. Every other copy (type,
// layout, broadcast, conjugate) runs on CPU aliases.
//
// copy_ is the one operator that cannot be bridged boxed: PyTorch's CPU slot
// for it has no boxed form. This kernel is registered unboxed, which gives it
// both forms: whoever stands in front of it asks the dispatcher for either.
//
// Thread-safety: any thread. Errors: c10::Error, the runtime's included.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_COPY_KERNEL_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_COPY_KERNEL_H_

#include <ATen/core/Tensor.h>

namespace cudasim::bridge {

at::Tensor& CopyKernel(at::Tensor& self, const at::Tensor& src,
                       bool non_blocking);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_COPY_KERNEL_H_
