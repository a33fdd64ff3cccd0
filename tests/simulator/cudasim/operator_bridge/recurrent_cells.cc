// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/recurrent_cells.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

namespace cudasim::bridge {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The last `count` values of the stack, taken off it.
std::vector<c10::IValue> PopArguments(const c10::OperatorHandle& op,
                                      Stack* stack) {
  return torch::jit::pop(*stack, op.schema().arguments().size());
}

bool IsGiven(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

Tensor AddBias(const Tensor& gates, const c10::IValue& bias) {
  return IsGiven(bias) ? gates + bias.toTensor() : gates;
}

Tensor SigmoidGradient(const Tensor& gradient, const Tensor& output) {
  return gradient * (1 - output) * output;
}

Tensor TanhGradient(const Tensor& gradient, const Tensor& output) {
  return gradient * (1 - output * output);
}

}  // namespace

// (input_gates, hidden_gates, cx, input_bias?, hidden_bias?)
//   -> (hy, cy, workspace); gates in the order input, forget, cell, output.
void LstmCell(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const auto arguments = PopArguments(op, stack);
  const auto gates = (AddBias(arguments[0].toTensor(), arguments[3]) +
                      AddBias(arguments[1].toTensor(), arguments[4]))
                         .chunk(4, 1);
  const Tensor in = at::sigmoid(gates[0]);
  const Tensor forget = at::sigmoid(gates[1]);
  const Tensor cell = at::tanh(gates[2]);
  const Tensor out = at::sigmoid(gates[3]);
  const Tensor cy = forget * arguments[2].toTensor() + in * cell;
  torch::jit::push(*stack, out * at::tanh(cy), cy,
                   at::cat({in, forget, cell, out}, 1));
}

// (grad_hy?, grad_cy?, cx, cy, workspace, has_bias)
//   -> (grad_gates, grad_cx, grad_bias)
void LstmCellBackward(const c10::OperatorHandle& op, Stack* stack,
                      c10::DeviceIndex) {
  const auto arguments = PopArguments(op, stack);
  const Tensor cx = arguments[2].toTensor();
  const Tensor cy = arguments[3].toTensor();
  const Tensor grad_hy =
      IsGiven(arguments[0]) ? arguments[0].toTensor() : at::zeros_like(cy);
  const Tensor grad_cy =
      IsGiven(arguments[1]) ? arguments[1].toTensor() : at::zeros_like(cy);
  const auto gates = arguments[4].toTensor().chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2],
               &out = gates[3];
  const Tensor squashed = at::tanh(cy);
  const Tensor grad = TanhGradient(grad_hy * out, squashed) + grad_cy;
  const Tensor grad_gates = at::cat(
      {SigmoidGradient(grad * cell, in), SigmoidGradient(grad * cx, forget),
       TanhGradient(grad * in, cell), SigmoidGradient(grad_hy * squashed, out)},
      1);
  torch::jit::push(*stack, grad_gates, grad * forget,
                   arguments[5].toBool() ? grad_gates.sum(0) : Tensor());
}

// (input_gates, hidden_gates, hx, input_bias?, hidden_bias?)
//   -> (hy, workspace); gates in the order reset, update, new.
void GruCell(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex) {
  const auto arguments = PopArguments(op, stack);
  const auto input = AddBias(arguments[0].toTensor(), arguments[3]).chunk(3, 1);
  const auto hidden =
      AddBias(arguments[1].toTensor(), arguments[4]).chunk(3, 1);
  const Tensor hx = arguments[2].toTensor();
  const Tensor reset = at::sigmoid(input[0] + hidden[0]);
  const Tensor update = at::sigmoid(input[1] + hidden[1]);
  const Tensor fresh = at::tanh(input[2] + reset * hidden[2]);
  torch::jit::push(*stack, fresh + update * (hx - fresh),
                   at::cat({reset, update, fresh, hx, hidden[2]}, 1));
}

// (grad_hy, workspace, has_bias) -> (grad_input_gates, grad_hidden_gates,
//   grad_hx, grad_input_bias, grad_hidden_bias)
void GruCellBackward(const c10::OperatorHandle& op, Stack* stack,
                     c10::DeviceIndex) {
  const auto arguments = PopArguments(op, stack);
  const Tensor grad_hy = arguments[0].toTensor();
  const auto saved = arguments[1].toTensor().chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2],
               &hx = saved[3], &hidden_new = saved[4];
  const Tensor grad_update = SigmoidGradient(grad_hy * (hx - fresh), update);
  const Tensor grad_new = TanhGradient(grad_hy * (1 - update), fresh);
  const Tensor grad_reset = SigmoidGradient(grad_new * hidden_new, reset);
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_new}, 1);
  const Tensor grad_hidden =
      at::cat({grad_reset, grad_update, grad_new * reset}, 1);
  const bool bias = arguments[2].toBool();
  torch::jit::push(*stack, grad_input, grad_hidden, grad_hy * update,
                   bias ? grad_input.sum(0) : Tensor(),
                   bias ? grad_hidden.sum(0) : Tensor());
}

}  // namespace cudasim::bridge
