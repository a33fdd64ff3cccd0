// SPDX-License-Identifier: Apache-2.0
//
// Float computation of operators on half and bfloat16 operands, with one
// rounding of each result, as CUDA's kernels compute.
//
// PyTorch's CPU kernels for these operators multiply element by element where
// the processor has no instructions for the type: 300 times slower than the
// float kernels. HALF_PRECISION.md has the times of all operators.
//
// An operator is widened if all its floating-point operands have one type,
// half or bfloat16. Other calls (mixed types, double) run, or are refused, as
// they are. An argument `dtype` sets the type of the results.
//
// Thread-safety: stateless but for one counter. Errors: c10::Error.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_HALF_PRECISION_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_HALF_PRECISION_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string_view>

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

inline bool IsHalfPrecision(c10::ScalarType type) {
  return type == c10::kHalf || type == c10::kBFloat16;
}

// The same values in float. An expanded dimension stays one: what it repeats
// is converted once.
at::Tensor InFloat(const at::Tensor& tensor);

// Calls computed in float so far, by all threads.
long WidenedCalls();

// The operands of one call, replaced on the stack by float copies.
class WidenedOperands {
 public:
  WidenedOperands(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  // After the computation: rounds the results on the stack, and what the
  // operator wrote into its arguments.
  void Round(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;

 private:
  struct Operand {
    at::Tensor original;
    at::Tensor wide;
    bool write;
  };

  at::Tensor Widen(const at::Tensor& tensor, bool write, bool out);
  at::Tensor Rounded(const at::Tensor& result) const;

  // What the results are rounded to; nothing: they stay as they are.
  std::optional<c10::ScalarType> type_;
  c10::SmallVector<Operand, 4> operands_;
};

// `compute` on float copies of half-precision operands.
template <CpuComputation compute>
void ComputeInFloat(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                    c10::DeviceIndex device) {
  const WidenedOperands widened(op, stack);
  compute(op, stack, device);
  widened.Round(op, stack);
}

// The computation of an operator without a substitute: in float for those
// whose CPU kernels are slow in half precision, else the CPU kernel.
CpuComputation CpuComputationFor(std::string_view name);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_HALF_PRECISION_H_
