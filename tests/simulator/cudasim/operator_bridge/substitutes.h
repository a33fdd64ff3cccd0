// SPDX-License-Identifier: Apache-2.0
//
// The operators whose CPU kernel alone does not do what their CUDA kernel does,
// and the computation (on CPU aliases) that does.
//
// Thread-safety: the table is constant.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SUBSTITUTES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SUBSTITUTES_H_

#include <string_view>

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

// The operators that need the CUDA tensors themselves, or nullptr.
DeviceComputation DeviceSubstituteFor(std::string_view name);

// The substitute for `name` (as "aten::native_dropout"), or nullptr.
CpuComputation SubstituteFor(std::string_view name);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SUBSTITUTES_H_
