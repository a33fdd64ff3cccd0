// SPDX-License-Identifier: Apache-2.0
//
// The kernels the bridge registers at the CUDA dispatch key.
//
// BridgedKernel runs an operator's CPU kernel (or its composite kernel, where
// the CPU slot is empty) on aliases of its CUDA tensors. One call, in order:
//   1. tensor arguments on the stack are replaced by CPU aliases of the same
//      bytes (lists too); CPU tensors stay as they are; a CUDA generator
//      becomes a CPU one seeded from it; without any tensor argument the device
//      argument becomes the CPU;
//   2. the stream is drained (async mode), the CPU kernel runs;
//   3. written arguments that were resized take sizes and bytes over;
//   4. results: an original for its alias, else a new CUDA tensor;
//   5. the device ranges read and written are logged (async mode), the
//      operator's cost is charged (virtual clock).
//
// It is callable boxed, with any stack below its arguments, so another boxed
// kernel may stand in front of it and call it as its previous kernel.
//
// DeviceKernel is for the few operators that rearrange CUDA tensors themselves.
//
// RefusingKernel raises NotImplementedError naming the operator and what to do
// instead: it has only a CUDA kernel, and running nothing would leave garbage
// behind.
//
// A device broken by a sticky error computes no more: BridgedKernel raises that
// error.
//
// Thread-safety: stateless but for the immutable plan; any thread, autograd's
// included. Errors: whatever the CPU kernel or the CUDA allocator throws.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_BOXED_KERNEL_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_BOXED_KERNEL_H_

#include <ATen/core/boxing/BoxedKernel.h>
#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/stack.h>

#include "tests/simulator/cudasim/operator_bridge/operator_cost.h"
#include "tests/simulator/cudasim/operator_bridge/operator_plan.h"
#include "tests/simulator/cudasim/operator_bridge/workspaces.h"

namespace cudasim::bridge {

// Computes an operator on a stack whose tensors are all on the CPU. `device` is
// the CUDA device the operator was called on.
using CpuComputation = void (*)(const c10::OperatorHandle& op,
                                torch::jit::Stack* stack,
                                c10::DeviceIndex device);

// The default: the operator's own kernel for the CPU.
void RunCpuKernel(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                  c10::DeviceIndex device);

class BridgedKernel final : public c10::OperatorKernel {
 public:
  // `compute` differs from the default for the few operators in substitutes.h.
  explicit BridgedKernel(const c10::OperatorHandle& op,
                         CpuComputation compute = &RunCpuKernel)
      : plan_(op), cost_(op), workspace_(op), compute_(compute) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const OperatorPlan plan_;
  const CostPlan cost_;
  const WorkspacePlan workspace_;
  const CpuComputation compute_;
};

// Computes an operator with other operators on the CUDA tensors themselves.
using DeviceComputation = void (*)(const c10::OperatorHandle& op,
                                   torch::jit::Stack* stack);

class DeviceKernel final : public c10::OperatorKernel {
 public:
  explicit DeviceKernel(DeviceComputation compute) : compute_(compute) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const DeviceComputation compute_;
};

class RefusingKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_BOXED_KERNEL_H_
