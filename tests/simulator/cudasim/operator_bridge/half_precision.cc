// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/half_precision.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace cudasim::bridge {
namespace {

using at::Tensor;
using torch::jit::Stack;

std::atomic<long> widened_calls{0};

// Names without overload.
constexpr std::array<std::string_view, 56> kInFloat = {
    // Matrix products.
    "aten::mm",
    "aten::addmm",
    "aten::addmm_",
    "aten::_addmm_activation",
    "aten::bmm",
    "aten::baddbmm",
    "aten::baddbmm_",
    "aten::addbmm",
    "aten::addbmm_",
    "aten::mv",
    "aten::addmv",
    "aten::addmv_",
    "aten::dot",
    "aten::vdot",
    "aten::_trilinear",
    "aten::linalg_matrix_exp",
    "aten::_grouped_mm",
    "aten::_native_multi_head_attention",
    "aten::_transformer_encoder_layer_fwd",
    // Convolutions.
    "aten::convolution",
    "aten::_convolution",
    "aten::convolution_overrideable",
    "aten::convolution_backward",
    "aten::convolution_backward_overrideable",
    "aten::_slow_conv2d_forward",
    "aten::_slow_conv2d_backward",
    "aten::slow_conv3d_forward",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
    "aten::conv_tbc",
    "aten::conv_tbc_backward",
    // Not computed in half by the CPU.
    "aten::avg_pool3d",
    "aten::avg_pool3d_backward",
    "aten::rrelu_with_noise",
    "aten::rrelu_with_noise_",
    "aten::rrelu_with_noise_backward",
    // Functions that the CPU computes one element at a time.
    "aten::erfc",
    "aten::erfc_",
    "aten::erfinv",
    "aten::erfinv_",
    "aten::logit",
    "aten::logit_",
    "aten::logit_backward",
    "aten::tanh",
    "aten::tanh_",
    "aten::normal_",
    "aten::linalg_vector_norm",
    "aten::_foreach_erfc",
    "aten::_foreach_erfc_",
    "aten::_foreach_tanh",
    "aten::_foreach_tanh_",
    "aten::_foreach_norm",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_backward",
};

template <typename Visit>
void VisitTensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor() && each.toTensor().defined()) visit(each.toTensor());
    }
  }
}

template <typename Replace>
c10::IValue ReplaceTensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? replace(value.toTensor()) : value;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> replaced;
    for (const Tensor& each : value.toTensorVector()) {
      replaced.push_back(each.defined() ? replace(each) : each);
    }
    return replaced;
  }
  if (!value.isList()) return value;
  c10::List<std::optional<Tensor>> replaced;  // Tensor?[]
  for (const c10::IValue& each : value.toListRef()) {
    if (!each.isTensor()) {
      replaced.push_back(std::nullopt);
    } else {
      replaced.push_back(each.toTensor().defined() ? replace(each.toTensor())
                                                   : each.toTensor());
    }
  }
  return replaced;
}

bool HoldsTensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return HoldsTensors(*type.containedType(0));
    default:
      return false;
  }
}

// The type that all floating-point operands have, if it is half or bfloat16.
std::optional<c10::ScalarType> OperandType(const c10::FunctionSchema& schema,
                                           const Stack& stack, size_t first) {
  std::optional<c10::ScalarType> type;
  bool mixed = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (!HoldsTensors(*schema.arguments()[i].real_type())) continue;
    VisitTensors(stack[first + i], [&](const Tensor& tensor) {
      const c10::ScalarType own = tensor.scalar_type();
      if (!c10::isFloatingType(own) && !c10::isComplexType(own)) return;
      mixed = mixed || tensor.layout() != c10::kStrided ||
              (type.has_value() && *type != own);
      type = own;
    });
  }
  if (mixed || !type.has_value() || !IsHalfPrecision(*type)) return {};
  return type;
}

// Distances of order 2 by a matrix product, which is what a device computes in
// half precision; it refuses the others, and so does the CPU kernel.
// (x1, x2, p, compute_mode?)
void Distances(const c10::OperatorHandle& op, Stack* stack,
               c10::DeviceIndex device) {
  constexpr int64_t kRows = 25;  // PyTorch's own limit
  const size_t first = stack->size() - 4;
  const auto rows = [&](size_t i) {
    return (*stack)[first + i].toTensor().size(-2);
  };
  const int64_t mode = (*stack)[first + 3].toOptional<int64_t>().value_or(0);
  const bool product =
      (*stack)[first + 2].toDouble() == 2 &&
      (mode == 1 || (mode == 0 && (rows(0) > kRows || rows(1) > kRows)));
  (product ? &ComputeInFloat<&RunCpuKernel> : &RunCpuKernel)(op, stack, device);
}

// The neighbour of `from` towards `to`, as bits; both are numbers.
inline uint16_t Next(uint16_t from, uint16_t to) {
  const auto ordered = [](uint16_t bits) -> int32_t {
    return bits & 0x8000 ? -(bits & 0x7FFF) : bits;
  };
  const int32_t a = ordered(from), b = ordered(to);
  const int32_t next = a + (b > a) - (b < a);
  if (a == b) return to;  // zeros of either sign are equal
  return static_cast<uint16_t>(next < 0 ? 0x8000 | -next
                                        : (next == 0 ? from & 0x8000 : next));
}

// (self, other), on the bits of the type.
void NextAfter(const c10::OperatorHandle& op, Stack* stack,
               c10::DeviceIndex device) {
  const size_t first = stack->size() - 2;
  const Tensor self = (*stack)[first].toTensor();
  const Tensor other = (*stack)[first + 1].toTensor();
  if (!IsHalfPrecision(self.scalar_type()) ||
      self.scalar_type() != other.scalar_type() ||
      self.sizes() != other.sizes()) {
    return RunCpuKernel(op, stack, device);
  }
  const Tensor from = self.contiguous(), to = other.contiguous();
  const Tensor bits = at::empty(self.sizes(), self.options());
  const auto* a = static_cast<const uint16_t*>(from.const_data_ptr());
  const auto* b = static_cast<const uint16_t*>(to.const_data_ptr());
  auto* out = static_cast<uint16_t*>(bits.mutable_data_ptr());
  const uint16_t infinity = self.scalar_type() == c10::kHalf ? 0x7C00 : 0x7F80;
  for (int64_t i = 0; i < self.numel(); ++i) {
    const bool number =
        (a[i] & 0x7FFF) <= infinity && (b[i] & 0x7FFF) <= infinity;
    out[i] = number ? Next(a[i], b[i]) : 0x7FFF;
  }
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, bits);
}

}  // namespace

Tensor InFloat(const Tensor& tensor) {
  Tensor once = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1)
      once = once.narrow(d, 0, 1);
  }
  return once.to(c10::kFloat).expand(tensor.sizes());
}

long WidenedCalls() { return widened_calls.load(std::memory_order_relaxed); }

WidenedOperands::WidenedOperands(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  type_ = OperandType(op.schema(), *stack, first);
  if (!type_.has_value()) return;
  const c10::ScalarType operands = *type_;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (arguments[i].name() != "dtype" || value.isNone()) continue;
    type_ = value.toScalarType();
    if (!IsHalfPrecision(*type_) && *type_ != c10::kFloat) {
      type_.reset();  // wider still
      return;
    }
    value = c10::kFloat;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    if (!HoldsTensors(*argument.real_type())) continue;
    const c10::AliasInfo* info = argument.alias_info();
    const bool write = info != nullptr && info->isWrite();
    c10::IValue& value = (*stack)[first + i];
    value = ReplaceTensors(value, [&](const Tensor& tensor) {
      return tensor.scalar_type() == operands
                 ? Widen(tensor, write, write && argument.kwarg_only())
                 : tensor;
    });
  }
  widened_calls.fetch_add(1, std::memory_order_relaxed);
}

// An output's values are not read; its strides show whether it overlaps itself.
Tensor WidenedOperands::Widen(const Tensor& tensor, bool write, bool out) {
  const Tensor wide =
      out ? at::empty_strided(tensor.sizes(), tensor.strides(),
                              tensor.options().dtype(c10::kFloat))
          : InFloat(tensor);
  operands_.push_back({tensor, wide, write});
  return wide;
}

Tensor WidenedOperands::Rounded(const Tensor& result) const {
  for (const Operand& operand : operands_) {
    if (result.is_same(operand.wide)) return operand.original;
  }
  return result.scalar_type() == c10::kFloat ? result.to(*type_) : result;
}

void WidenedOperands::Round(const c10::OperatorHandle& op, Stack* stack) const {
  if (!type_.has_value()) return;
  for (const Operand& operand : operands_) {
    if (!operand.write) continue;
    if (operand.wide.sizes() != operand.original.sizes()) {
      operand.original.resize_(operand.wide.sizes());
    }
    operand.original.copy_(operand.wide);
  }
  const size_t returns = op.schema().returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    (*stack)[i] = ReplaceTensors(
        (*stack)[i], [&](const Tensor& result) { return Rounded(result); });
  }
}

CpuComputation CpuComputationFor(std::string_view name) {
  if (name == "aten::_cdist_forward") return &Distances;
  if (name == "aten::nextafter") return &NextAfter;
  const std::string_view base = name.substr(0, name.find('.'));
  return std::find(kInFloat.begin(), kInFloat.end(), base) == kInFloat.end()
             ? &RunCpuKernel
             : &ComputeInFloat<&RunCpuKernel>;
}

}  // namespace cudasim::bridge
