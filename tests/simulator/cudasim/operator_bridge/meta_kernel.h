// SPDX-License-Identifier: Apache-2.0
//
// The kernel the bridge registers at the CUDA key when numbers are off
// (CUDASIM_NUMBERS=off): results have the sizes, strides and types they would
// have, come from the allocator under test, are logged and charged like those
// of BridgedKernel, and nothing is computed. Every number reads as zero.
//
// Where the sizes come from (ShapeRoute):
//   kMeta        the operator's Meta kernel, C++ or Python (those of
//                torch._meta_registrations, which need the GIL);
//   kSubstitute  no Meta kernel, but a substitute (substitutes.h) made of
//                operators that have one: it runs on the Meta device;
//   kNothing     no Meta kernel, and every result is a written argument: there
//                is nothing to find out;
//   kZeros       results depend on values (nonzero, unique, masked_select,
//                equal), or no Meta kernel: the CPU kernel computes on zeros,
//                if its operands are at most 256 MiB;
//   kNone        none of these: refused by name (RefusingKernel).
//
// A random operator advances its generator's offset as with numbers.
//
// Thread-safety: stateless but for the immutable plan. Errors: what the Meta
// kernel or the CUDA allocator throws.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_META_KERNEL_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_META_KERNEL_H_

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/stack.h>

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"
#include "tests/simulator/cudasim/operator_bridge/operator_cost.h"
#include "tests/simulator/cudasim/operator_bridge/operator_plan.h"
#include "tests/simulator/cudasim/operator_bridge/workspaces.h"

namespace cudasim::bridge {

enum class ShapeRoute { kNone, kMeta, kSubstitute, kNothing, kZeros };

// `substitute`: the operator's, or nullptr.
ShapeRoute ShapeRouteOf(const c10::OperatorHandle& op,
                        CpuComputation substitute);

// Makes the Python Meta kernels known, if the process runs Python. Before any
// ShapeRouteOf().
void ImportMetaKernels();

class MetaKernel final : public c10::OperatorKernel {
 public:
  // REQUIRES: route is not kNone.
  MetaKernel(const c10::OperatorHandle& op, ShapeRoute route,
             CpuComputation substitute);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const OperatorPlan plan_;
  const CostPlan cost_;
  const WorkspacePlan workspace_;
  const ShapeRoute route_;
  const CpuComputation substitute_;
  const bool random_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_META_KERNEL_H_
