// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tests/simulator/cudasim/operator_bridge/half_precision.h"

namespace cudasim::bridge {
namespace {

using at::Tensor;

constexpr double kNone = -std::numeric_limits<double>::infinity();

c10::ScalarType ComputeType(const Tensor& tensor) {
  return tensor.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
}

std::optional<Tensor> Bias(const Attention& a) {
  if (!a.bias.defined()) return std::nullopt;
  return IsHalfPrecision(a.bias.scalar_type()) ? InFloat(a.bias) : a.bias;
}

// PyTorch's flash kernel for the CPU computes exactly this attention.
bool CpuKernelApplies(const Attention& a) {
  const Tensor& bias = a.bias;
  return a.dropout == 0 && a.window_left < 0 && a.window_right < 0 &&
         !(a.causal && a.causal_from_end && a.query.size(2) != a.key.size(2)) &&
         !(a.causal && bias.defined()) && a.query.size(3) == a.value.size(3) &&
         a.query.numel() > 0 && a.key.numel() > 0 && a.query.stride(3) == 1 &&
         a.key.stride(3) == 1 && a.value.stride(3) == 1 &&
         (!bias.defined() || bias.dim() == 2 || bias.dim() == 4);
}

// Keys and values as many heads as the query has.
Tensor PerQueryHead(const Tensor& tensor, const Attention& a) {
  const int64_t group = a.query.size(1) / tensor.size(1);
  return group == 1 ? tensor : tensor.repeat_interleave(group, 1);
}

// Sums the gradients of the query heads that share a key head.
Tensor PerKeyHead(const Tensor& gradient, const Tensor& like) {
  if (gradient.size(1) == like.size(1)) return gradient;
  const int64_t group = gradient.size(1) / like.size(1);
  return gradient
      .view({gradient.size(0), like.size(1), group, gradient.size(2),
             gradient.size(3)})
      .sum(2);
}

// True where a query must not see a key; undefined if it sees all.
Tensor Hidden(const Attention& a) {
  int64_t left = a.window_left, right = a.window_right;
  if (a.causal) right = 0;
  if (left < 0 && right < 0) return Tensor();
  const int64_t queries = a.query.size(2), keys = a.key.size(2);
  const bool from_end = a.causal ? a.causal_from_end : true;
  const int64_t shift = from_end ? keys - queries : 0;
  const Tensor distance =
      at::arange(keys).unsqueeze(0) - at::arange(queries).unsqueeze(1) - shift;
  Tensor hidden = at::zeros({queries, keys}, at::kBool);
  if (right >= 0) hidden = hidden | (distance > right);
  if (left >= 0) hidden = hidden | (distance < -left);
  return hidden;
}

// (batch, heads, queries, keys) in the type of computation.
Tensor Scores(const Attention& a) {
  const auto type = ComputeType(a.query);
  Tensor scores = at::matmul(a.query.to(type) * a.scale,
                             PerQueryHead(a.key, a).to(type).transpose(2, 3));
  if (a.bias.defined()) scores = scores + a.bias.to(type);
  const Tensor hidden = Hidden(a);
  return hidden.defined() ? scores.masked_fill(hidden, kNone) : scores;
}

// softmax of the scores from their logsumexp. A row that sees nothing is 0.
Tensor Probabilities(const Attention& a, const Tensor& logsumexp) {
  const Tensor sums = logsumexp.to(ComputeType(a.query)).unsqueeze(3);
  return (Scores(a) - sums).exp().masked_fill(sums == kNone, 0.0);
}

// 0 where dropped, 1 / (1 - p) where kept; undefined without dropout.
Tensor DropoutMask(const Attention& a) {
  if (a.dropout == 0) return Tensor();
  const double keep = 1 - a.dropout;
  return at::empty(
             {a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)},
             ComputeType(a.query))
      .bernoulli_(keep, CpuGenerator(a.random))
      .mul_(keep == 0 ? 0.0 : 1 / keep);
}

// In the layout of a device's kernel: heads inside of positions.
Tensor HeadsInside(const Tensor& tensor) {
  return tensor.transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace

double AttentionScale(const std::optional<double>& given, const Tensor& query) {
  return given.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

AttentionResult ComputeAttention(const Attention& a) {
  const auto type = ComputeType(a.query);
  if (CpuKernelApplies(a)) {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        a.query.to(type), a.key.to(type), a.value.to(type), 0.0, a.causal,
        Bias(a), a.scale);
    return {output.to(a.query.scalar_type()), logsumexp.to(c10::kFloat)};
  }
  const Tensor logsumexp = at::logsumexp(Scores(a), {3});
  Tensor weights = Probabilities(a, logsumexp);
  if (const Tensor mask = DropoutMask(a); mask.defined()) {
    weights = weights * mask;
  }
  const Tensor output =
      at::matmul(weights, PerQueryHead(a.value, a).to(weights.scalar_type()));
  return {HeadsInside(output.to(a.query.scalar_type())),
          logsumexp.to(c10::kFloat).contiguous()};
}

AttentionGradients ComputeAttentionGradients(const Attention& a,
                                             const Tensor& grad_output,
                                             const AttentionResult& forward,
                                             bool bias_gradient) {
  const auto type = ComputeType(a.query);
  if (CpuKernelApplies(a) && !bias_gradient) {
    auto [query, key, value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output.to(type), a.query.to(type), a.key.to(type),
            a.value.to(type), forward.output.to(type),
            forward.logsumexp.to(type), 0.0, a.causal, Bias(a), a.scale);
    return {query.to(a.query.scalar_type()), key.to(a.key.scalar_type()),
            value.to(a.value.scalar_type()), Tensor()};
  }
  const Tensor gradient = grad_output.to(type);
  const Tensor weights = Probabilities(a, forward.logsumexp);
  const Tensor mask = DropoutMask(a);
  const Tensor grad_value = at::matmul(
      (mask.defined() ? weights * mask : weights).transpose(2, 3), gradient);
  Tensor grad_weights =
      at::matmul(gradient, PerQueryHead(a.value, a).to(type).transpose(2, 3));
  if (mask.defined()) grad_weights = grad_weights * mask;
  const Tensor grad_scores =
      weights *
      (grad_weights - (grad_weights * weights).sum(3, /*keepdim=*/true));
  AttentionGradients gradients;
  gradients.query =
      HeadsInside(at::matmul(grad_scores, PerQueryHead(a.key, a).to(type))
                      .mul_(a.scale))
          .to(a.query.scalar_type());
  gradients.key = HeadsInside(PerKeyHead(at::matmul(grad_scores.transpose(2, 3),
                                                    a.query.to(type))
                                             .mul_(a.scale),
                                         a.key))
                      .to(a.key.scalar_type());
  gradients.value =
      HeadsInside(PerKeyHead(grad_value, a.value)).to(a.value.scalar_type());
  if (bias_gradient && a.bias.defined()) {
    gradients.bias =
        grad_scores.sum_to_size(a.bias.sizes()).to(a.bias.scalar_type());
  }
  return gradients;
}

}  // namespace cudasim::bridge
