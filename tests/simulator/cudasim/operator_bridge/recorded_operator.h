// SPDX-License-Identifier: Apache-2.0
//
// Bridged operators on a capturing stream: recorded as a node of the graph and
// computed, on the same addresses, at every launch of it.
//
// A recording holds what a kernel launch holds: addresses, sizes, strides and
// values, never a CUDA tensor. It keeps no block alive; that is the program's
// business (PyTorch keeps a graph's pool). Tensors on the host are copied, as a
// launch copies scalars.
//
// At the capture the CPU kernel runs once for the shapes of the results
// (shape_run.h), on ShadowBytes. The results are allocated from the allocator
// under test. No byte of the device changes before the first launch, neither
// those of the results: other tensors may use that memory until then.
//
// Random numbers: seed and offset are read through the generator's device
// pointers at every launch (generator.h).
//
// Thread-safety: as BridgedKernel. A recording may run on any thread.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECORDED_OPERATOR_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECORDED_OPERATOR_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"
#include "tests/simulator/cudasim/operator_bridge/operator_plan.h"
#include "tests/simulator/cudasim/operator_bridge/workspaces.h"

namespace cudasim::bridge {

// If the current stream of the operator's device captures: records it, puts its
// results on the stack and returns true. Throws what a device would answer: an
// operator that synchronises, a spoilt capture. Otherwise touches nothing.
bool RecordIfCapturing(const c10::OperatorHandle& op, const OperatorPlan& plan,
                       CpuComputation compute, const WorkspacePlan& workspace,
                       torch::jit::Stack* stack);

// True if the current stream of the device captures. Throws if its capture is
// spoilt.
bool IsCapturing(c10::DeviceIndex device);

// The same for copy_ by a kernel (both on the device, other dtype or strides).
// REQUIRES: IsCapturing.
void RecordCopy(const at::Tensor& self, const at::Tensor& src);
// A captured copy of bytes (the device records it itself): what follows in the
// capture sees them.
void ShadowCopy(const at::Tensor& self, const at::Tensor& src);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECORDED_OPERATOR_H_
