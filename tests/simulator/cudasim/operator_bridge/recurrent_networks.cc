// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/recurrent_networks.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/arguments.h"

namespace cudasim::bridge {
namespace {

using at::Tensor;

// cudnnRNNMode_t of "aten::lstm".
int ModeOf(const std::string& name) {
  if (name == "aten::lstm") return 2;
  if (name == "aten::gru") return 3;
  return name == "aten::rnn_tanh" ? 1 : 0;
}

// The buffer that holds all weights, if flatten_parameters() made one.
Tensor CommonBuffer(const std::vector<Tensor>& weights) {
  int64_t elements = 0;
  for (const Tensor& weight : weights) {
    if (!weight.is_alias_of(weights[0])) return Tensor();
    elements += weight.numel();
  }
  const c10::Storage& storage = weights[0].storage();
  if (storage.nbytes() != elements * weights[0].itemsize()) return Tensor();
  return at::empty({0}, weights[0].options()).set_(storage, 0, {elements}, {1});
}

}  // namespace

// lstm.input: (input, hx[], params[], has_biases, num_layers, dropout, train,
// bidirectional, batch_first); .data: (data, batch_sizes, hx, params, ...,
// bidirectional). The others have one tensor as hx.
void RecurrentKernel::operator()(const c10::OperatorHandle& op,
                                 c10::DispatchKeySet /*keys*/,
                                 torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const Tensor first = (*stack)[stack->size() - count].toTensor();
  if (!at::cudnn_is_acceptable(first)) {
    // The slot of the CPU's autograd holds PyTorch's composite form.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradCPU),
                       stack);
    return;
  }
  const Arguments in(op, stack);
  const bool packed = op.operator_name().overload_name == "data";
  const size_t at_hx = packed ? 2 : 1;
  const int mode = ModeOf(op.operator_name().name);
  Tensor input = in.TensorAt(0), hx, cx;
  if (mode == 2) {
    const auto states = in[at_hx].toTensorVector();
    TORCH_CHECK(states.size() == 2, "lstm expects two hidden states");
    hx = states[0];
    cx = states[1];
  } else {
    hx = in.TensorAt(at_hx);
  }
  std::vector<Tensor> weights = in[at_hx + 1].toTensorVector();

  std::optional<c10::impl::ExcludeDispatchKeyGuard> below_autocast;
  if (at::autocast::is_autocast_enabled(at::kCUDA)) {
    below_autocast.emplace(c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA));
    const auto type = at::autocast::get_autocast_dtype(at::kCUDA);
    const auto cast = [type](Tensor& tensor) {
      if (tensor.defined() && tensor.scalar_type() != c10::kDouble) {
        tensor = tensor.to(type);
      }
    };
    cast(input);
    cast(hx);
    cast(cx);
    for (Tensor& weight : weights) cast(weight);
  }

  const int64_t hidden = cx.defined() ? cx.size(2) : hx.size(2);
  const int64_t projection = hx.size(2) == hidden ? 0 : hx.size(2);
  const int64_t per_layer =
      (in[at_hx + 2].toBool() ? 4 : 2) + (projection != 0 ? 1 : 0);
  std::vector<int64_t> batch_sizes;
  if (packed) {
    const Tensor sizes = in.TensorAt(1).to(c10::kLong).contiguous();
    batch_sizes.assign(sizes.const_data_ptr<int64_t>(),
                       sizes.const_data_ptr<int64_t>() + sizes.numel());
  }
  const Tensor buffer = CommonBuffer(weights);
  auto [output, hy, cy, reserve, weight_buffer] = at::_cudnn_rnn(
      input, weights, per_layer,
      buffer.defined() ? std::optional<Tensor>(buffer) : std::nullopt, hx,
      cx.defined() ? std::optional<Tensor>(cx) : std::nullopt, mode, hidden,
      projection, in[at_hx + 3].toInt(), !packed && in[at_hx + 7].toBool(),
      in[at_hx + 4].toDouble(), in[at_hx + 5].toBool(), in[at_hx + 6].toBool(),
      batch_sizes, std::nullopt);
  torch::jit::push(*stack, output, hy);
  if (mode == 2) torch::jit::push(*stack, cy);
}

}  // namespace cudasim::bridge
