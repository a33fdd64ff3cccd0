// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/operator_cost.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

namespace cudasim::bridge {
namespace {

struct Known {
  std::string_view name;  // without overload
  FlopFormula formula;
  int first;
};

constexpr std::array kKnown = {
    Known{"aten::mm", FlopFormula::kProduct, 0},
    Known{"aten::_scaled_mm", FlopFormula::kProduct, 0},
    Known{"aten::addmm", FlopFormula::kProduct, 1},
    Known{"aten::addmm_", FlopFormula::kProduct, 1},
    Known{"aten::bmm", FlopFormula::kBatchedProduct, 0},
    Known{"aten::baddbmm", FlopFormula::kBatchedProduct, 1},
    Known{"aten::baddbmm_", FlopFormula::kBatchedProduct, 1},
    Known{"aten::convolution", FlopFormula::kConvolution, 0},
    Known{"aten::_convolution", FlopFormula::kConvolution, 0},
    Known{"aten::cudnn_convolution", FlopFormula::kConvolution, 0},
    Known{"aten::convolution_overrideable", FlopFormula::kConvolution, 0},
    Known{"aten::_slow_conv2d_forward", FlopFormula::kConvolution, 0},
    Known{"aten::convolution_backward", FlopFormula::kConvolutionBackward, 0},
    Known{"aten::_scaled_dot_product_efficient_attention",
          FlopFormula::kAttention, 0},
    Known{"aten::_scaled_dot_product_flash_attention", FlopFormula::kAttention,
          0},
    Known{"aten::_scaled_dot_product_cudnn_attention", FlopFormula::kAttention,
          0},
    Known{"aten::_flash_attention_forward", FlopFormula::kAttention, 0},
    Known{"aten::_efficient_attention_forward", FlopFormula::kAttention, 0},
    Known{"aten::_scaled_dot_product_efficient_attention_backward",
          FlopFormula::kAttentionBackward, 0},
    Known{"aten::_scaled_dot_product_flash_attention_backward",
          FlopFormula::kAttentionBackward, 0},
    Known{"aten::_scaled_dot_product_cudnn_attention_backward",
          FlopFormula::kAttentionBackward, 0},
    Known{"aten::_flash_attention_backward", FlopFormula::kAttentionBackward,
          0},
    Known{"aten::_efficient_attention_backward",
          FlopFormula::kAttentionBackward, 0},
};

constexpr std::array<std::string_view, 20> kPicking = {
    "aten::embedding",
    "aten::index",
    "aten::index_select",
    "aten::gather",
    "aten::take",
    "aten::_unsafe_index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::index_add_",
    "aten::index_copy_",
    "aten::index_fill_",
    "aten::scatter_",
    "aten::scatter_add_",
    "aten::scatter_reduce_",
    "aten::put_",
    "aten::masked_select",
    "aten::_unsafe_index_put",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only"};

// Bytes of the elements there are: a dimension that was expanded has one.
double BytesOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  double elements = 1;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    if (strides[d] != 0) elements *= static_cast<double>(sizes[d]);
  }
  return elements * static_cast<double>(tensor.itemsize());
}

template <typename Visit>
void VisitTensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {  // Tensor?[]
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) visit(element.toTensor());
    }
  }
}

int DtypeOf(const at::Tensor& tensor, bool convolution) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kComplexDouble:
      return CUDASIM_FP64;
    case at::kHalf:
      return CUDASIM_FP16;
    case at::kBFloat16:
      return CUDASIM_BF16;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return CUDASIM_FP8;
    case at::kChar:
    case at::kByte:
      return CUDASIM_INT8;
    default:
      break;
  }
  auto& context = at::globalContext();
  const bool tf32 =
      context.float32Precision(
          at::Float32Backend::CUDA,
          convolution ? at::Float32Op::CONV : at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32;
  return tf32 ? CUDASIM_TF32 : CUDASIM_FP32;
}

// Multiplications and additions count one each.
double Product(double m, double k, double n) { return 2 * m * k * n; }

template <typename Shape>
double Volume(const Shape& shape, size_t from) {
  double volume = 1;
  for (size_t i = from; i < shape.size(); ++i) {
    volume *= static_cast<double>(shape[i]);
  }
  return volume;
}

// `points`: where the filter is applied, the output's or (transposed) the
// input's positions.
template <typename Shape, typename Points>
double ConvolutionFlops(const Shape& filter, const Points& points,
                        double batch) {
  return 2 * Volume(points, 2) * Volume(filter, 0) * batch;
}

int IndexOf(const c10::FunctionSchema& schema, const std::string& name) {
  const auto index = schema.argumentIndexWithName(name);
  return index.has_value() ? *index : -1;
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

}  // namespace

CostPlan::CostPlan(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  for (const Known& known : kKnown) {
    if (known.name != name) continue;
    formula = known.formula;
    first = known.first;
  }
  convolution = formula == FlopFormula::kConvolution ||
                formula == FlopFormula::kConvolutionBackward;
  if (convolution) {
    transposed = IndexOf(schema, "transposed");
    mask = IndexOf(schema, "output_mask");
  }
  picks = std::find(kPicking.begin(), kPicking.end(), name) != kPicking.end();
  arguments = static_cast<int>(schema.arguments().size());
  for (int i = 0; i < arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!HoldsTensors(*argument.real_type())) continue;
    const c10::AliasInfo* info = argument.alias_info();
    const bool written = info != nullptr && info->isWrite();
    const bool out = written && argument.kwarg_only();
    tensors.push_back({i, written && !out, out});
  }
}

OperatorMeter::OperatorMeter(const CostPlan& plan,
                             const torch::jit::Stack& stack, size_t first)
    : plan_(plan), active_(SimulatedDevice::Get().keeps_time()) {
  if (active_) ReadSlow(stack, first);
}

void OperatorMeter::ReadSlow(const torch::jit::Stack& stack, size_t first) {
  dtype_ = CUDASIM_FP32;
  bool is_first = true;
  for (const CostPlan::TensorArgument& argument : plan_.tensors) {
    if (argument.out) continue;
    VisitTensors(stack[first + argument.index], [&](const at::Tensor& tensor) {
      const double bytes = BytesOf(tensor);
      if (plan_.picks && is_first) {
        is_first = false;
        return;  // counted as what is picked from it
      }
      is_first = false;
      picked_ = std::max(picked_, bytes);
      bytes_ += argument.in_place ? 2 * bytes : bytes;
    });
  }
  if (plan_.formula == FlopFormula::kNone) return;
  for (int i = plan_.first; i < plan_.arguments && shapes_.size() < 4; ++i) {
    const c10::IValue& value = stack[first + i];
    if (!value.isTensor() || !value.toTensor().defined()) break;
    const auto sizes = value.toTensor().sizes();
    shapes_.emplace_back(sizes.begin(), sizes.end());
    if (i == plan_.first) dtype_ = DtypeOf(value.toTensor(), plan_.convolution);
  }
  if (plan_.transposed >= 0) {
    transposed_ = stack[first + plan_.transposed].toBool();
  }
  if (plan_.mask >= 0) {
    const auto mask = stack[first + plan_.mask].toBoolList();
    wants_[0] = mask.get(0);
    wants_[1] = mask.get(1);
  }
}

double OperatorMeter::Flops(const torch::jit::Stack& stack,
                            size_t result) const {
  const auto at = [&](size_t shape, size_t dimension) {
    return static_cast<double>(shapes_[shape][dimension]);
  };
  const auto has = [&](size_t count, size_t dimensions) {
    if (shapes_.size() < count) return false;
    for (size_t i = 0; i < count; ++i) {
      if (shapes_[i].size() < dimensions) return false;
    }
    return true;
  };
  switch (plan_.formula) {
    case FlopFormula::kNone:
      return 0;
    case FlopFormula::kProduct:
      return has(2, 2) ? Product(at(0, 0), at(0, 1), at(1, 1)) : 0;
    case FlopFormula::kBatchedProduct:
      return has(2, 3) ? at(0, 0) * Product(at(0, 1), at(0, 2), at(1, 2)) : 0;
    case FlopFormula::kConvolution: {
      if (!has(2, 3) || !stack[result].isTensor()) return 0;
      // An image without a batch: PyTorch adds the dimension before it calls.
      if (transposed_) {
        return ConvolutionFlops(shapes_[1], shapes_[0], at(0, 0));
      }
      return ConvolutionFlops(shapes_[1], stack[result].toTensor().sizes(),
                              at(0, 0));
    }
    case FlopFormula::kConvolutionBackward: {
      if (!has(3, 3)) return 0;  // gradient, input, filter
      double flops = 0;
      // The gradient of the input is the other kind of convolution of the
      // gradient with the filter.
      if (wants_[0]) {
        flops += transposed_
                     ? ConvolutionFlops(shapes_[2], shapes_[1], at(0, 0))
                     : ConvolutionFlops(shapes_[2], shapes_[0], at(0, 0));
      }
      // The gradient of the filter convolves input and gradient: each takes
      // the other as its filter, batch and channels exchanged, and the result
      // is the filter's size.
      if (wants_[1]) {
        const size_t moving = transposed_ ? 0 : 1;
        const size_t fixed = transposed_ ? 1 : 0;
        flops += 2 * Volume(shapes_[2], 2) * Volume(shapes_[fixed], 2) *
                 at(fixed, 1) * at(fixed, 0) * at(moving, 1);
      }
      return flops;
    }
    case FlopFormula::kAttention: {
      if (!has(3, 4)) return 0;
      const double heads = at(0, 0) * at(0, 1);
      return heads * (Product(at(0, 2), at(0, 3), at(1, 2)) +
                      Product(at(0, 2), at(1, 2), at(2, 3)));
    }
    case FlopFormula::kAttentionBackward: {
      if (!has(4, 4)) return 0;  // gradient, query, key, value
      const double heads = at(1, 0) * at(1, 1);
      const double queries = at(1, 2);
      const double keys = at(2, 2);
      // Scores again, their gradient, and the gradients of q, k and v.
      return heads * (3 * Product(queries, at(1, 3), keys) +
                      2 * Product(queries, at(3, 3), keys));
    }
  }
  return 0;
}

void OperatorMeter::ChargeSlow(const torch::jit::Stack& stack, size_t result,
                               int returns, c10::DeviceIndex device) {
  double results = 0;
  bool in_place = false;
  for (const CostPlan::TensorArgument& argument : plan_.tensors) {
    in_place = in_place || argument.in_place;
  }
  // An operator in place returns what was counted already.
  if (!in_place) {
    for (int i = 0; i < returns; ++i) {
      VisitTensors(stack[result + i], [&](const at::Tensor& tensor) {
        results += BytesOf(tensor);
      });
    }
  }
  double bytes = bytes_ + results;
  if (plan_.picks) bytes += in_place ? 2 * picked_ : results;
  SimulatedDevice::Get().OperatorCost(
      c10::cuda::getCurrentCUDAStream(device).stream(), Flops(stack, result),
      bytes, dtype_);
}

}  // namespace cudasim::bridge
