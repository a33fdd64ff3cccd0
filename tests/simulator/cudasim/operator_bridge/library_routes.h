// SPDX-License-Identifier: Apache-2.0
//
// Operators that CUDA hands to a vendor library and that have a twin of another
// name on the CPU: cuDNN's batch norm, convolutions and samplers, products with
// a result type of their own, the kernels behind SyncBatchNorm, old dropout.
// Each is a CpuComputation: it takes its arguments off the stack and calls the
// twin on the CPU aliases.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_LIBRARY_ROUTES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_LIBRARY_ROUTES_H_

#include <string_view>

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

// The route of "aten::cudnn_batch_norm" and so on, or nullptr.
CpuComputation LibraryRouteFor(std::string_view name);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_LIBRARY_ROUTES_H_
