// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one boxed call, taken off the stack and asked for by
// position. For the substitutes, whose operators have up to twenty of them.
//
// Thread-safety: one call on one thread.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ARGUMENTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace cudasim::bridge {

class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : name_(c10::toString(op.operator_name())),
        values_(torch::jit::pop(*stack, op.schema().arguments().size())) {}

  const c10::IValue& operator[](size_t i) const { return values_[i]; }

  // Undefined for None.
  at::Tensor TensorAt(size_t i) const {
    return values_[i].isTensor() ? values_[i].toTensor() : at::Tensor();
  }
  // Nothing for None and for an undefined tensor.
  std::optional<at::Tensor> OptionalAt(size_t i) const {
    const at::Tensor tensor = TensorAt(i);
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  }
  int64_t IntAt(size_t i, int64_t none) const {
    return values_[i].isInt() ? values_[i].toInt() : none;
  }
  std::optional<double> NumberAt(size_t i) const {
    return values_[i].toOptional<double>();
  }
  std::vector<int64_t> IntsAt(size_t i) const {
    return values_[i].toIntVector();
  }
  // Raises NotImplementedError if the argument is there.
  void RefuseGiven(size_t i, const char* what, const char* hint) const {
    TORCH_CHECK_NOT_IMPLEMENTED(!TensorAt(i).defined(),
                                "the simulated device cannot run '", name_,
                                "' with ", what, ": ", hint);
  }

 private:
  const std::string name_;
  const std::vector<c10::IValue> values_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ARGUMENTS_H_
