// SPDX-License-Identifier: Apache-2.0
//
// Recurrent networks as cuDNN runs them: RNN, LSTM and GRU of several layers
// and directions, projections, packed sequences and dropout between layers, by
// PyTorch's own networks for the CPU.
//
// The forward keeps nothing but what the device keeps: a reserve of the size a
// fused kernel needs for the gates of every step, and in it the seed of the
// dropout masks. The backward runs the forward again and lets autograd
// differentiate it; both happen on CPU aliases.
//
// Thread-safety: functions without state.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_CUDNN_RECURRENT_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_CUDNN_RECURRENT_H_

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

void CudnnRnn(const c10::OperatorHandle& op, torch::jit::Stack* stack,
              c10::DeviceIndex device);
void CudnnRnnBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                      c10::DeviceIndex device);
// The state of cuDNN's own generator. The masks come from the CUDA generator
// instead, so these bytes are only there to be counted.
void CudnnDropoutState(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                       c10::DeviceIndex device);

// Moves a network's weights into one buffer: works on the CUDA tensors
// themselves, whose storages it replaces.
void CudnnFlattenWeights(const c10::OperatorHandle& op,
                         torch::jit::Stack* stack);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_CUDNN_RECURRENT_H_
