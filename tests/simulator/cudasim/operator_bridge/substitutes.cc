// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/substitutes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sum.h>

#include <array>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/attention_routes.h"
#include "tests/simulator/cudasim/operator_bridge/cudnn_recurrent.h"
#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/library_routes.h"
#include "tests/simulator/cudasim/operator_bridge/recurrent_cells.h"

namespace cudasim::bridge {
namespace {

using torch::jit::Stack;

// native_dropout has no generator argument; its CPU kernel would draw from the
// CPU's default generator, which torch.cuda.manual_seed does not reach and a
// CUDA operator must not advance.
void NativeDropout(const c10::OperatorHandle&, Stack* stack,
                   c10::DeviceIndex device) {
  const auto train = torch::jit::pop(*stack).toOptional<bool>();
  const double p = torch::jit::pop(*stack).toDouble();
  const at::Tensor input = torch::jit::pop(*stack).toTensor();
  at::Tensor mask, output;
  if (input.numel() == 0 || !train.value_or(true) || p == 0) {
    mask = at::ones_like(input, input.options().dtype(c10::kBool));
    output = input.clone();
  } else {
    const double keep = 1 - p;
    mask = at::empty_like(input, input.options().dtype(c10::kBool));
    mask.bernoulli_(keep, CpuGeneratorFor(std::nullopt, device, input.numel()));
    output = input.mul(mask).mul_(keep == 0 ? 0.0 : 1 / keep);
  }
  torch::jit::push(*stack, output, mask);
}

// A half-precision softmax that returns float: only the CUDA kernel takes
// half_to_float, and it computes in float throughout.
void SoftmaxHalfToFloat(const c10::OperatorHandle& op, Stack* stack,
                        c10::DeviceIndex device) {
  c10::IValue& half_to_float = stack->back();
  if (half_to_float.toBool()) {
    half_to_float = false;
    c10::IValue& self = (*stack)[stack->size() - 3];
    self = self.toTensor().to(c10::kFloat);
  }
  RunCpuKernel(op, stack, device);
}

// Its backward: the gradient is float and is returned in the input's type.
void SoftmaxBackward(const c10::OperatorHandle& op, Stack* stack,
                     c10::DeviceIndex device) {
  const auto input_type = stack->back().toScalarType();
  const auto gradient_type =
      (*stack)[stack->size() - 4].toTensor().scalar_type();
  if (input_type == gradient_type) return RunCpuKernel(op, stack, device);
  stack->back() = gradient_type;
  RunCpuKernel(op, stack, device);
  stack->back() = stack->back().toTensor().to(input_type);
}

// (grad_out, input, normalized_shape, rstd, weight?, output_mask)
//   -> (grad_input, grad_weight). With g = grad_out * weight and n elements per
// row: grad_input = rstd * (g - input * rstd^2 * sum(g * input) / n).
void RmsNormBackward(const c10::OperatorHandle& op, Stack* stack,
                     c10::DeviceIndex) {
  const auto arguments =
      torch::jit::pop(*stack, op.schema().arguments().size());
  const at::Tensor grad_out = arguments[0].toTensor();
  const at::Tensor input = arguments[1].toTensor();
  const at::Tensor rstd = arguments[3].toTensor();
  const auto weight = arguments[4].toOptional<at::Tensor>();
  const auto mask = arguments[5].toBoolList();
  const int64_t normalized = arguments[2].toIntVector().size();
  std::vector<int64_t> row, batch;
  for (int64_t d = 0; d < input.dim(); ++d) {
    (d < input.dim() - normalized ? batch : row).push_back(d);
  }
  at::Tensor grad_input, grad_weight;
  if (mask[0]) {
    const at::Tensor g =
        weight && weight->defined() ? grad_out * *weight : grad_out;
    grad_input = rstd * (g - input * rstd * rstd *
                                 (g * input).mean(row, /*keepdim=*/true));
  }
  if (mask[1] && weight && weight->defined()) {
    grad_weight = grad_out * input * rstd;
    if (!batch.empty()) grad_weight = grad_weight.sum(batch);
  }
  torch::jit::push(*stack, grad_input, grad_weight);
}

// "Would the vendor library do this?" No: the native form follows.
void No(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, false);
}

struct Substitute {
  std::string_view name;
  CpuComputation compute;
};

constexpr std::array<Substitute, 27> kSubstitutes = {{
    {"aten::native_dropout", &NativeDropout},
    {"aten::_softmax", &SoftmaxHalfToFloat},
    {"aten::_log_softmax", &SoftmaxHalfToFloat},
    {"aten::_softmax_backward_data", &SoftmaxBackward},
    {"aten::_log_softmax_backward_data", &SoftmaxBackward},
    {"aten::_fused_rms_norm_backward", &RmsNormBackward},
    {"aten::_scaled_dot_product_flash_attention", &SdpaFlash},
    {"aten::_scaled_dot_product_flash_attention_backward", &SdpaFlashBackward},
    {"aten::_scaled_dot_product_efficient_attention", &SdpaEfficient},
    {"aten::_scaled_dot_product_efficient_attention_backward",
     &SdpaEfficientBackward},
    {"aten::_scaled_dot_product_cudnn_attention", &SdpaCudnn},
    {"aten::_scaled_dot_product_cudnn_attention_backward", &SdpaCudnnBackward},
    {"aten::_flash_attention_forward", &FlashForward},
    {"aten::_flash_attention_backward", &FlashBackward},
    {"aten::_efficient_attention_forward", &EfficientForward},
    {"aten::_efficient_attention_backward", &EfficientBackward},
    {"aten::_cudnn_rnn", &CudnnRnn},
    {"aten::_cudnn_rnn_backward", &CudnnRnnBackward},
    {"aten::_cudnn_init_dropout_state", &CudnnDropoutState},
    {"aten::_use_cudnn_ctc_loss", &No},
    {"aten::_use_cudnn_ctc_loss.Tensor", &No},
    {"aten::_use_miopen_ctc_loss", &No},
    {"aten::_use_miopen_ctc_loss.Tensor", &No},
    {"aten::_thnn_fused_lstm_cell", &LstmCell},
    {"aten::_thnn_fused_lstm_cell_backward_impl", &LstmCellBackward},
    {"aten::_thnn_fused_gru_cell", &GruCell},
    {"aten::_thnn_fused_gru_cell_backward", &GruCellBackward},
}};

}  // namespace

CpuComputation SubstituteFor(std::string_view name) {
  for (const Substitute& substitute : kSubstitutes) {
    if (substitute.name == name) return substitute.compute;
  }
  return LibraryRouteFor(name);
}

DeviceComputation DeviceSubstituteFor(std::string_view name) {
  return name == "aten::_cudnn_rnn_flatten_weight" ? &CudnnFlattenWeights
                                                   : nullptr;
}

}  // namespace cudasim::bridge
