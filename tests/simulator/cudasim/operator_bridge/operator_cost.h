// SPDX-License-Identifier: Apache-2.0
//
// What an operator costs on the virtual clock: floating-point operations of
// matrix products, convolutions and attention by the formulas of
// torch.utils.flop_counter, and for every operator the bytes it reads and
// writes. Each becomes one kernel (cudasim_operator_cost). It needs shapes
// only, so it is right with and without numbers.
//
//   CostPlan plan(op);                      // once
//   OperatorMeter meter(plan, stack, first);  // arguments on the stack
//   ... the operator runs, results take their place ...
//   meter.Charge(stack, result, returns, device);
//
// Nothing is looked at unless a card or a profile is in force: one load and a
// branch per operator.
//
// Thread-safety: a plan is immutable; a meter belongs to one call.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_OPERATOR_COST_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_OPERATOR_COST_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <vector>

namespace cudasim::bridge {

enum class FlopFormula {
  kNone,
  kProduct,              // (m, k) x (k, n)
  kBatchedProduct,       // (b, m, k) x (b, k, n)
  kConvolution,          // also transposed
  kConvolutionBackward,  // each gradient that is asked for
  kAttention,            // scores and values
  kAttentionBackward,
};

struct CostPlan {
  explicit CostPlan(const c10::OperatorHandle& op);

  FlopFormula formula = FlopFormula::kNone;
  int first = 0;  // the argument the formula starts with
  int mask = -1;  // output_mask of a convolution's backward
  int transposed = -1;
  bool convolution = false;  // TF32 is allowed by another switch
  // Reads (or writes) only as much of its first tensor as comes out (goes in):
  // embedding, index, gather, scatter, ...
  bool picks = false;
  struct TensorArgument {
    int index;
    bool in_place;  // read and written
    bool out;       // written only, counted among the results
  };
  std::vector<TensorArgument> tensors;
  int arguments = 0;
};

class OperatorMeter {
 public:
  // `first`: where the operator's arguments start on the stack.
  OperatorMeter(const CostPlan& plan, const torch::jit::Stack& stack,
                size_t first);
  OperatorMeter(const OperatorMeter&) = delete;
  OperatorMeter& operator=(const OperatorMeter&) = delete;

  // Results are on the stack. Charges the current stream of `device`.
  void Charge(const torch::jit::Stack& stack, size_t result, int returns,
              c10::DeviceIndex device) {
    if (active_) ChargeSlow(stack, result, returns, device);
  }

 private:
  using Shape = c10::SmallVector<int64_t, 5>;

  void ReadSlow(const torch::jit::Stack& stack, size_t first);
  void ChargeSlow(const torch::jit::Stack& stack, size_t result, int returns,
                  c10::DeviceIndex device);
  double Flops(const torch::jit::Stack& stack, size_t result) const;

  const CostPlan& plan_;
  const bool active_;
  double bytes_ = 0;
  double picked_ = 0;  // bytes of the largest tensor after the first
  int dtype_ = 0;
  bool transposed_ = false;
  bool wants_[2] = {false, false};
  // Of up to four tensors from the formula's first on.
  c10::SmallVector<Shape, 4> shapes_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_OPERATOR_COST_H_
