// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/cudnn_recurrent.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "tests/simulator/cudasim/operator_bridge/arguments.h"
#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/half_precision.h"

namespace cudasim::bridge {
namespace {

using at::Tensor;
using torch::jit::Stack;

// cudnnRNNMode_t
enum Mode { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

// One call's network. Tensors are on the CPU.
struct Network {
  Mode mode;
  int64_t hidden = 0;
  int64_t layers = 0;
  bool batch_first = false;
  bool bidirectional = false;
  double dropout = 0;  // 0 outside of training
  PhiloxState random;
  std::vector<int64_t> batch_sizes;  // packed sequences, else empty
  Tensor input;
  std::vector<Tensor> weights;
  size_t weights_per_layer = 0;  // of one direction
  Tensor hx, cx;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  bool biases() const { return weights_per_layer >= 4; }
  int64_t gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
};

struct States {
  Tensor output, hy, cy;
};

// Layers [first, first + count) of the network on `input`.
States RunLayers(const Network& n, const Tensor& input, int64_t first,
                 int64_t count) {
  const int64_t rows = n.directions();
  const auto part = [&](const Tensor& state) {
    return state.narrow(0, first * rows, count * rows);
  };
  const size_t per_layer = n.weights_per_layer * rows;
  const std::vector<Tensor> weights(
      n.weights.begin() + first * per_layer,
      n.weights.begin() + (first + count) * per_layer);
  const bool packed = !n.batch_sizes.empty();
  const Tensor sizes =
      packed ? at::tensor(n.batch_sizes, c10::kLong) : Tensor();
  const Tensor hx = part(n.hx);
  States result;
  if (n.mode == kLstm) {
    const std::vector<Tensor> state{hx, part(n.cx)};
    std::tie(result.output, result.hy, result.cy) =
        packed ? at::lstm(input, sizes, state, weights, n.biases(), count, 0.0,
                          false, n.bidirectional)
               : at::lstm(input, state, weights, n.biases(), count, 0.0, false,
                          n.bidirectional, n.batch_first);
    return result;
  }
  const auto run = [&](auto&& with_sizes, auto&& plain) {
    std::tie(result.output, result.hy) =
        packed ? with_sizes(input, sizes, hx, weights, n.biases(), count, 0.0,
                            false, n.bidirectional)
               : plain(input, hx, weights, n.biases(), count, 0.0, false,
                       n.bidirectional, n.batch_first);
  };
  switch (n.mode) {
    case kGru:
      run(at::_ops::gru_data::call, at::_ops::gru_input::call);
      break;
    case kTanh:
      run(at::_ops::rnn_tanh_data::call, at::_ops::rnn_tanh_input::call);
      break;
    default:
      run(at::_ops::rnn_relu_data::call, at::_ops::rnn_relu_input::call);
  }
  return result;
}

// The whole network; with dropout one layer at a time, a mask between two.
States RunNetwork(const Network& n) {
  if (n.dropout == 0 || n.layers == 1) {
    return RunLayers(n, n.input, 0, n.layers);
  }
  const double keep = 1 - n.dropout;
  at::Generator generator = CpuGenerator(n.random);
  std::vector<Tensor> hy, cy;
  Tensor values = n.input;
  for (int64_t layer = 0; layer < n.layers; ++layer) {
    const States states = RunLayers(n, values, layer, 1);
    hy.push_back(states.hy);
    if (states.cy.defined()) cy.push_back(states.cy);
    values = states.output;
    if (layer + 1 == n.layers) break;
    const Tensor mask = at::empty(values.sizes(), values.options())
                            .bernoulli_(keep, generator)
                            .mul_(keep == 0 ? 0.0 : 1 / keep);
    values = values * mask;
  }
  return {values, at::cat(hy), cy.empty() ? Tensor() : at::cat(cy)};
}

// The CPU's half-precision products are slow: in float, results rounded.
States Run(const Network& n) {
  const auto type = n.input.scalar_type();
  if (!IsHalfPrecision(type)) return RunNetwork(n);
  Network wide = n;
  wide.input = InFloat(n.input);
  wide.hx = InFloat(n.hx);
  if (n.cx.defined()) wide.cx = InFloat(n.cx);
  for (Tensor& weight : wide.weights) weight = InFloat(weight);
  const States states = RunNetwork(wide);
  return {states.output.to(type), states.hy.to(type),
          states.cy.defined() ? states.cy.to(type) : Tensor()};
}

// What the fused kernels keep of a training forward: the gates, the cell and
// the output of every step. The first 16 bytes hold the seed of the masks.
Tensor Reserve(const Network& n, bool train) {
  int64_t bytes = 0;
  if (train) {
    const int64_t steps = n.batch_sizes.empty()
                              ? n.input.size(0) * n.input.size(1)
                              : n.input.size(0);
    bytes = 16 + steps * n.layers * n.directions() * n.hidden *
                     (n.gates() + 2) * n.input.itemsize();
  }
  Tensor reserve = at::zeros({bytes}, c10::kByte);
  if (train) {
    const uint64_t words[2] = {n.random.seed, n.random.offset};
    std::memcpy(reserve.mutable_data_ptr(), words, sizeof(words));
  }
  return reserve;
}

PhiloxState FromReserve(const Tensor& reserve) {
  PhiloxState state;
  if (reserve.numel() < 16) return state;
  const auto* words = static_cast<const uint64_t*>(reserve.const_data_ptr());
  state.seed = words[0];
  state.offset = words[1];
  return state;
}

// The arguments that forward and backward share from `mode` on.
void ReadOptions(const Arguments& in, size_t mode, Network& n) {
  n.mode = static_cast<Mode>(in[mode].toInt());
  n.hidden = in[mode + 1].toInt();
  n.layers = in[mode + 3].toInt();
  n.batch_first = in[mode + 4].toBool();
  n.dropout = in[mode + 6].toBool() ? in[mode + 5].toDouble() : 0.0;
  n.bidirectional = in[mode + 7].toBool();
  n.batch_sizes = in.IntsAt(mode + 8);
  n.input = in.TensorAt(0);
  n.weights = in[1].toTensorVector();
  n.weights_per_layer = in[2].toInt();
}

// Differentiates what runs in its scope although the bridge computes below
// autograd.
class AutogradScope {
 private:
  c10::impl::ForceDispatchKeyGuard keys_{c10::default_included_set,
                                         c10::default_excluded_set};
  c10::AutoGradMode grad_{true};
};

Tensor Leaf(const Tensor& tensor) {
  return tensor.defined() ? tensor.detach().requires_grad_() : Tensor();
}

}  // namespace

// (input, weight[], weight_stride0, weight_buf?, hx, cx?, mode, hidden_size,
//  proj_size, num_layers, batch_first, dropout, train, bidirectional,
//  batch_sizes[], dropout_state?) -> (output, hy, cy, reserve, weight_buf)
void CudnnRnn(const c10::OperatorHandle& op, Stack* stack,
              c10::DeviceIndex device) {
  const Arguments in(op, stack);
  Network n;
  ReadOptions(in, 6, n);
  n.hx = in.TensorAt(4);
  n.cx = in.TensorAt(5);
  if (n.dropout > 0) {
    n.random = TakePhilox(std::nullopt, device,
                          PhiloxIncrement(n.input.numel(), device));
  }
  const States states = Run(n);
  Tensor buffer = in.TensorAt(3);
  if (!buffer.defined()) {
    std::vector<Tensor> flat;
    for (const Tensor& weight : n.weights) flat.push_back(weight.reshape(-1));
    buffer = at::cat(flat);
  }
  torch::jit::push(
      *stack, states.output, states.hy,
      states.cy.defined() ? states.cy : at::empty({0}, n.input.options()),
      Reserve(n, in[12].toBool()), buffer);
}

// (input, weight[], weight_stride0, weight_buf, hx, cx?, output, grad_output?,
//  grad_hy?, grad_cy?, mode, hidden_size, proj_size, num_layers, batch_first,
//  dropout, train, bidirectional, batch_sizes[], dropout_state?, reserve,
//  output_mask[4]) -> (input, hx, cx, weight[])
void CudnnRnnBackward(const c10::OperatorHandle& op, Stack* stack,
                      c10::DeviceIndex) {
  const Arguments in(op, stack);
  Network n;
  ReadOptions(in, 10, n);
  n.random = FromReserve(in.TensorAt(20));
  const auto mask = in[21].toBoolList();
  std::vector<Tensor> found;
  {
    AutogradScope autograd;
    n.input = Leaf(n.input);
    n.hx = Leaf(in.TensorAt(4));
    n.cx = Leaf(in.TensorAt(5));
    for (Tensor& weight : n.weights) weight = Leaf(weight);
    const States states = Run(n);
    std::vector<Tensor> roots, gradients, leaves{n.input, n.hx};
    const auto root = [&](const Tensor& value, const Tensor& gradient) {
      if (!value.defined() || !gradient.defined()) return;
      roots.push_back(value);
      gradients.push_back(gradient);
    };
    root(states.output, in.TensorAt(7));
    root(states.hy, in.TensorAt(8));
    root(states.cy, in.TensorAt(9));
    if (n.cx.defined()) leaves.push_back(n.cx);
    leaves.insert(leaves.end(), n.weights.begin(), n.weights.end());
    if (roots.empty()) {
      found.resize(leaves.size());
    } else {
      found = torch::autograd::grad(roots, leaves, gradients,
                                    /*retain_graph=*/false,
                                    /*create_graph=*/false,
                                    /*allow_unused=*/true);
    }
    for (size_t i = 0; i < found.size(); ++i) {
      found[i] = found[i].defined() ? found[i].detach()
                                    : at::zeros_like(leaves[i].detach());
    }
  }
  const size_t first_weight = n.cx.defined() ? 3 : 2;
  std::vector<Tensor> weights(found.begin() + first_weight, found.end());
  if (!mask[3]) weights.assign(weights.size(), Tensor());
  torch::jit::push(
      *stack, mask[0] ? found[0] : Tensor(), mask[1] ? found[1] : Tensor(),
      mask[2] && n.cx.defined() ? found[2] : Tensor(), std::move(weights));
}

// (dropout, train, dropout_seed, dtype, layout, device, pin_memory)
void CudnnDropoutState(const c10::OperatorHandle& op, Stack* stack,
                       c10::DeviceIndex) {
  const Arguments in(op, stack);
  const bool used = in[0].toDouble() > 0 && in[1].toBool();
  // Megabytes on a card; nobody reads them here.
  torch::jit::push(*stack, at::zeros({used ? 1 << 20 : 0}, c10::kByte));
}

// (weight_arr[], weight_stride0, input_size, mode, hidden_size, proj_size,
//  num_layers, batch_first, bidirectional) -> buffer
void CudnnFlattenWeights(const c10::OperatorHandle& op, Stack* stack) {
  const Arguments in(op, stack);
  const std::vector<Tensor> weights = in[0].toTensorVector();
  TORCH_CHECK(!weights.empty(),
              "_cudnn_rnn_flatten_weight_: cannot flatten empty weight list");
  int64_t elements = 0;
  for (const Tensor& weight : weights) elements += weight.numel();
  const Tensor buffer = at::zeros({elements}, weights[0].options());
  int64_t offset = 0;
  for (const Tensor& weight : weights) {
    const Tensor place =
        buffer.narrow(0, offset, weight.numel()).view(weight.sizes());
    place.copy_(weight);
    weight.set_(place);
    offset += weight.numel();
  }
  torch::jit::push(*stack, buffer);
}

}  // namespace cudasim::bridge
