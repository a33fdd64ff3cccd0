// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/library_routes.h"

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/arguments.h"
#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/half_precision.h"

namespace cudasim::bridge {
namespace {

using at::Tensor;
using c10::OperatorHandle;
using torch::jit::Stack;

// --- Batch norm
// ---------------------------------------------------------------

// (input, weight, bias?, running_mean?, running_var?, training, momentum, eps)
//   -> (output, mean, invstd, reserve)
void CudnnBatchNorm(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  auto [output, mean, invstd] = at::native_batch_norm(
      in.TensorAt(0), in.OptionalAt(1), in.OptionalAt(2), in.OptionalAt(3),
      in.OptionalAt(4), in[5].toBool(), in[6].toDouble(), in[7].toDouble());
  torch::jit::push(*stack, output, mean, invstd, at::empty({0}, c10::kByte));
}

// (input, grad_output, weight, running_mean?, running_var?, mean?, invstd?,
//  eps, reserve) -> (input, weight, bias)
void CudnnBatchNormBackward(const OperatorHandle& op, Stack* stack,
                            c10::DeviceIndex) {
  const Arguments in(op, stack);
  auto [input, weight, bias] = at::native_batch_norm_backward(
      in.TensorAt(1), in.TensorAt(0), in.OptionalAt(2), in.OptionalAt(3),
      in.OptionalAt(4), in.OptionalAt(5), in.OptionalAt(6), /*train=*/true,
      in[7].toDouble(), {true, true, true});
  torch::jit::push(*stack, input, weight, bias);
}

// --- SyncBatchNorm: channels are dimension 1, statistics are float
// ---------------

Tensor PerChannel(const Tensor& statistic, const Tensor& like) {
  std::vector<int64_t> sizes(like.dim(), 1);
  sizes[1] = statistic.numel();
  return statistic.view(sizes);
}

std::vector<int64_t> AllButChannels(const Tensor& tensor) {
  std::vector<int64_t> dimensions;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (d != 1) dimensions.push_back(d);
  }
  return dimensions;
}

c10::ScalarType StatisticType(const Tensor& input) {
  return input.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
}

// (input, eps) -> (mean, invstd)
void BatchNormStats(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const Tensor input = in.TensorAt(0).to(StatisticType(in.TensorAt(0)));
  auto [variance, mean] =
      at::var_mean(input, AllButChannels(input), /*unbiased=*/false);
  torch::jit::push(*stack, mean, (variance + in[1].toDouble()).rsqrt());
}

// (input, weight?, bias?, mean, invstd, eps)
void BatchNormElement(const OperatorHandle& op, Stack* stack,
                      c10::DeviceIndex) {
  const Arguments in(op, stack);
  const Tensor input = in.TensorAt(0);
  Tensor scale = in.TensorAt(4);
  if (const Tensor weight = in.TensorAt(1); weight.defined()) {
    scale = scale * weight;
  }
  Tensor output =
      (input - PerChannel(in.TensorAt(3), input)) * PerChannel(scale, input);
  if (const Tensor bias = in.TensorAt(2); bias.defined()) {
    output = output + PerChannel(bias, input);
  }
  torch::jit::push(*stack, output.to(input.scalar_type()));
}

// (input, mean (processes, channels), invstd, running_mean?, running_var?,
//  momentum, eps, counts or count) -> (mean, invstd) of the whole batch
void BatchNormGather(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const Tensor means = in.TensorAt(1), invstds = in.TensorAt(2);
  const double momentum = in[5].toDouble(), eps = in[6].toDouble();
  const Tensor counts =
      (in[7].isTensor()
           ? in.TensorAt(7).to(means.scalar_type())
           : at::full({means.size(0)}, in[7].toInt(), means.options()))
          .view({-1, 1});
  const Tensor total = counts.sum();
  const Tensor mean = (means * counts).sum(0) / total;
  const Tensor variances = invstds.pow(-2) - eps;
  const Tensor variance =
      ((variances + (means - mean).pow(2)) * counts).sum(0) / total;
  if (Tensor running = in.TensorAt(3); running.defined()) {
    running.mul_(1 - momentum).add_(mean, momentum);
  }
  if (Tensor running = in.TensorAt(4); running.defined()) {
    running.mul_(1 - momentum).add_(variance * (total / (total - 1)), momentum);
  }
  torch::jit::push(*stack, mean, (variance + eps).rsqrt());
}

// (grad_out, input, mean, invstd, weight?, input_g, weight_g, bias_g)
//   -> (sum_dy, sum_dy_xmu, grad_weight, grad_bias)
void BatchNormReduce(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const auto type = StatisticType(in.TensorAt(1));
  const Tensor gradient = in.TensorAt(0).to(type);
  const Tensor input = in.TensorAt(1).to(type);
  const auto dimensions = AllButChannels(input);
  const Tensor sum = gradient.sum(dimensions);
  const Tensor product =
      (gradient * (input - PerChannel(in.TensorAt(2), input))).sum(dimensions);
  const Tensor weight = in.TensorAt(4);
  const auto weight_type = weight.defined() ? weight.scalar_type() : type;
  torch::jit::push(
      *stack, in[5].toBool() ? sum : Tensor(),
      in[5].toBool() ? product : Tensor(),
      in[6].toBool() ? (product * in.TensorAt(3)).to(weight_type) : Tensor(),
      in[7].toBool() ? sum.to(weight_type) : Tensor());
}

// (grad_out, input, mean, invstd, weight?, sum_dy, sum_dy_xmu, counts)
void BatchNormInput(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const Tensor input = in.TensorAt(1);
  const auto type = StatisticType(input);
  const Tensor total = in.TensorAt(7).sum().to(type);
  const Tensor invstd = in.TensorAt(3);
  const Tensor mean_dy = in.TensorAt(5).to(type) / total;
  const Tensor mean_dy_xmu = in.TensorAt(6).to(type) / total;
  Tensor scale = invstd;
  if (const Tensor weight = in.TensorAt(4); weight.defined()) {
    scale = scale * weight;
  }
  const Tensor centred = input.to(type) - PerChannel(in.TensorAt(2), input);
  const Tensor result =
      (in.TensorAt(0).to(type) - PerChannel(mean_dy, input) -
       centred * PerChannel(invstd.pow(2) * mean_dy_xmu, input)) *
      PerChannel(scale, input);
  torch::jit::push(*stack, result.to(input.scalar_type()));
}

// --- Convolution and sampling
// -----------------------------------------------------

// (self, weight, padding, stride, dilation, groups, benchmark, deterministic,
//  allow_tf32)
void CudnnConvolution(const OperatorHandle& op, Stack* stack,
                      c10::DeviceIndex) {
  const Arguments in(op, stack);
  const std::vector<int64_t> none(in.TensorAt(0).dim() - 2, 0);
  torch::jit::push(
      *stack, at::convolution(in.TensorAt(0), in.TensorAt(1), std::nullopt,
                              in.IntsAt(3), in.IntsAt(2), in.IntsAt(4), false,
                              none, in[5].toInt()));
}

// (self, weight, padding, output_padding, stride, dilation, groups, ...)
void CudnnConvolutionTranspose(const OperatorHandle& op, Stack* stack,
                               c10::DeviceIndex) {
  const Arguments in(op, stack);
  torch::jit::push(
      *stack, at::convolution(in.TensorAt(0), in.TensorAt(1), std::nullopt,
                              in.IntsAt(4), in.IntsAt(2), in.IntsAt(5), true,
                              in.IntsAt(3), in[6].toInt()));
}

// (self, weight, bias?, stride, padding, dilation, groups)
void CudnnConvolutionRelu(const OperatorHandle& op, Stack* stack,
                          c10::DeviceIndex) {
  const Arguments in(op, stack);
  const std::vector<int64_t> none(in.TensorAt(0).dim() - 2, 0);
  torch::jit::push(
      *stack, at::convolution(in.TensorAt(0), in.TensorAt(1), in.OptionalAt(2),
                              in.IntsAt(3), in.IntsAt(4), in.IntsAt(5), false,
                              none, in[6].toInt())
                  .relu());
}

// (self, weight, z, alpha?, bias?, stride, padding, dilation, groups)
void CudnnConvolutionAddRelu(const OperatorHandle& op, Stack* stack,
                             c10::DeviceIndex) {
  const Arguments in(op, stack);
  const std::vector<int64_t> none(in.TensorAt(0).dim() - 2, 0);
  const c10::Scalar alpha = in[3].isNone() ? c10::Scalar(1) : in[3].toScalar();
  torch::jit::push(
      *stack, at::convolution(in.TensorAt(0), in.TensorAt(1), in.OptionalAt(4),
                              in.IntsAt(5), in.IntsAt(6), in.IntsAt(7), false,
                              none, in[8].toInt())
                  .add(in.TensorAt(2), alpha)
                  .relu());
}

// (self, weight, kernel_size, bias?, stride, padding, dilation)
void DepthwiseConvolution(const OperatorHandle& op, Stack* stack,
                          c10::DeviceIndex) {
  const Arguments in(op, stack);
  const Tensor self = in.TensorAt(0);
  const std::vector<int64_t> none(self.dim() - 2, 0);
  torch::jit::push(
      *stack,
      at::convolution(self, in.TensorAt(1), in.OptionalAt(3), in.IntsAt(4),
                      in.IntsAt(5), in.IntsAt(6), false, none, self.size(1)));
}

// cuDNN samples bilinearly, pads with zeros and aligns corners.
void CudnnGridSampler(const OperatorHandle& op, Stack* stack,
                      c10::DeviceIndex) {
  const Arguments in(op, stack);
  torch::jit::push(
      *stack, at::grid_sampler_2d(in.TensorAt(0), in.TensorAt(1), 0, 0, true));
}

void CudnnGridSamplerBackward(const OperatorHandle& op, Stack* stack,
                              c10::DeviceIndex) {
  const Arguments in(op, stack);
  auto [self, grid] = at::grid_sampler_2d_backward(
      in.TensorAt(2), in.TensorAt(0), in.TensorAt(1), 0, 0, true, {true, true});
  torch::jit::push(*stack, self, grid);
}

// (theta or grad, N, C, H, W)
std::vector<int64_t> GridSizes(const Arguments& in) {
  return {in[1].toInt(), in[2].toInt(), in[3].toInt(), in[4].toInt()};
}

void CudnnAffineGrid(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  torch::jit::push(
      *stack, at::affine_grid_generator(in.TensorAt(0), GridSizes(in), true));
}

void CudnnAffineGridBackward(const OperatorHandle& op, Stack* stack,
                             c10::DeviceIndex) {
  const Arguments in(op, stack);
  torch::jit::push(*stack, at::affine_grid_generator_backward(
                               in.TensorAt(0), GridSizes(in), true));
}

// --- Products with a result type of their own
// ---------------------------------------

// (self, mat2, out_dtype)
void TypedProduct(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const auto type = in[2].toScalarType();
  torch::jit::push(
      *stack, at::matmul(in.TensorAt(0).to(type), in.TensorAt(1).to(type)));
}

// (self, first, second, out_dtype, beta, alpha)
void TypedSum(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const auto type = in[3].toScalarType();
  const Tensor self = in.TensorAt(0).to(type);
  const Tensor first = in.TensorAt(1).to(type),
               second = in.TensorAt(2).to(type);
  const c10::Scalar beta = in[4].toScalar(), alpha = in[5].toScalar();
  torch::jit::push(*stack, first.dim() == 3
                               ? at::baddbmm(self, first, second, beta, alpha)
                               : at::addmm(self, first, second, beta, alpha));
}

// --- Old dropout
// --------------------------------------------------------------------

// (self, keep, generator?) -> (result, mask)
void FusedDropout(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  const Tensor self = in.TensorAt(0);
  const double keep = in[1].toDouble();
  const Tensor mask = at::empty_like(self, self.options().dtype(c10::kByte));
  mask.bernoulli_(keep, in[2].toGenerator());
  torch::jit::push(*stack, self.mul(mask).mul_(keep == 0 ? 0.0 : 1 / keep),
                   mask);
}

void MaskedScale(const OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const Arguments in(op, stack);
  torch::jit::push(*stack,
                   in.TensorAt(0).mul(in.TensorAt(1)).mul_(in[2].toDouble()));
}

struct Route {
  std::string_view name;
  CpuComputation compute;
};

constexpr std::array<Route, 24> kRoutes = {{
    {"aten::cudnn_batch_norm", &CudnnBatchNorm},
    {"aten::cudnn_batch_norm_backward", &CudnnBatchNormBackward},
    {"aten::batch_norm_stats", &BatchNormStats},
    {"aten::batch_norm_elemt", &BatchNormElement},
    {"aten::batch_norm_gather_stats", &BatchNormGather},
    {"aten::batch_norm_gather_stats_with_counts", &BatchNormGather},
    {"aten::batch_norm_backward_reduce", &BatchNormReduce},
    {"aten::batch_norm_backward_elemt", &BatchNormInput},
    {"aten::cudnn_convolution", &ComputeInFloat<&CudnnConvolution>},
    {"aten::cudnn_convolution_transpose",
     &ComputeInFloat<&CudnnConvolutionTranspose>},
    {"aten::cudnn_convolution_relu", &ComputeInFloat<&CudnnConvolutionRelu>},
    {"aten::cudnn_convolution_add_relu",
     &ComputeInFloat<&CudnnConvolutionAddRelu>},
    {"aten::_conv_depthwise2d", &ComputeInFloat<&DepthwiseConvolution>},
    {"aten::conv_depthwise3d", &ComputeInFloat<&DepthwiseConvolution>},
    {"aten::cudnn_grid_sampler", &CudnnGridSampler},
    {"aten::cudnn_grid_sampler_backward", &CudnnGridSamplerBackward},
    {"aten::cudnn_affine_grid_generator", &CudnnAffineGrid},
    {"aten::cudnn_affine_grid_generator_backward", &CudnnAffineGridBackward},
    {"aten::mm.dtype", &TypedProduct},
    {"aten::bmm.dtype", &TypedProduct},
    {"aten::addmm.dtype", &TypedSum},
    {"aten::baddbmm.dtype", &TypedSum},
    {"aten::_fused_dropout", &FusedDropout},
    {"aten::_masked_scale", &MaskedScale},
}};

}  // namespace

CpuComputation LibraryRouteFor(std::string_view name) {
  for (const Route& route : kRoutes) {
    if (route.name == name) return route.compute;
  }
  return nullptr;
}

}  // namespace cudasim::bridge
