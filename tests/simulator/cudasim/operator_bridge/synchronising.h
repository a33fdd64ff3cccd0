// SPDX-License-Identifier: Apache-2.0
//
// Operators whose CUDA kernels wait for the device, because the host needs a
// number from it: the size of a result, a bool. In a capture they fail there,
// so they must fail here too.
//
// Thread-safety: constant.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SYNCHRONISING_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SYNCHRONISING_H_

#include <ATen/core/stack.h>

#include <string_view>

namespace cudasim::bridge {

// `name` as "aten::index.Tensor"; its arguments start at `first` of the stack.
bool Synchronises(std::string_view name, const torch::jit::Stack& stack,
                  size_t first);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SYNCHRONISING_H_
