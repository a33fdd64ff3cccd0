// SPDX-License-Identifier: Apache-2.0
//
// lstm, gru, rnn_tanh and rnn_relu on CUDA tensors.
//
// PyTorch's own composite form prepares cuDNN's descriptors before it calls
// _cudnn_rnn, and cuDNN cannot initialise on the simulated device. This form
// calls _cudnn_rnn (cudnn_recurrent.h) at once where PyTorch would; everywhere
// else it hands on to PyTorch's. It is differentiable: it consists of operators
// that are, so it is registered above autograd too.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECURRENT_NETWORKS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECURRENT_NETWORKS_H_

#include <array>
#include <string_view>

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

struct OverloadName {
  const char* name;
  const char* overload;
};

constexpr std::array<OverloadName, 8> kRecurrentNetworks = {{
    {"aten::lstm", "input"},
    {"aten::lstm", "data"},
    {"aten::gru", "input"},
    {"aten::gru", "data"},
    {"aten::rnn_tanh", "input"},
    {"aten::rnn_tanh", "data"},
    {"aten::rnn_relu", "input"},
    {"aten::rnn_relu", "data"},
}};

class RecurrentKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECURRENT_NETWORKS_H_
