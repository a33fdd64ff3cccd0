// SPDX-License-Identifier: Apache-2.0
//
// LSTM and GRU cells. PyTorch computes them on CUDA tensors with fused
// operators that have no CPU kernel; here they are written out in CPU
// operators, with the same arguments, results and workspace layout.
//
// Each is a CpuComputation: tensors on the stack are CPU aliases.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECURRENT_CELLS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECURRENT_CELLS_H_

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

void LstmCell(const c10::OperatorHandle& op, torch::jit::Stack* stack,
              c10::DeviceIndex device);
void LstmCellBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                      c10::DeviceIndex device);
void GruCell(const c10::OperatorHandle& op, torch::jit::Stack* stack,
             c10::DeviceIndex device);
void GruCellBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                     c10::DeviceIndex device);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECURRENT_CELLS_H_
