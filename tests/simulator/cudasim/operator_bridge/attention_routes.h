// SPDX-License-Identifier: Apache-2.0
//
// The fused attention operators of CUDA, forward and backward: the flash, the
// memory-efficient and the cuDNN form, as scaled_dot_product_attention calls
// them and as programs call them directly, packed sequences included. Each is a
// CpuComputation that takes its arguments off the stack, computes with
// attention.h and returns what the device's kernel returns: the same tensors of
// the same sizes, so that a program holds the same bytes between forward and
// backward.
//
// Not computed, and refused by name: the quantized forms, ALiBi slopes, and
// key lengths given beside packed sequences.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ATTENTION_ROUTES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ATTENTION_ROUTES_H_

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

namespace cudasim::bridge {

// _scaled_dot_product_flash_attention, _efficient_attention, _cudnn_attention
void SdpaFlash(const c10::OperatorHandle& op, torch::jit::Stack* stack,
               c10::DeviceIndex device);
void SdpaFlashBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                       c10::DeviceIndex device);
void SdpaEfficient(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                   c10::DeviceIndex device);
void SdpaEfficientBackward(const c10::OperatorHandle& op,
                           torch::jit::Stack* stack, c10::DeviceIndex device);
void SdpaCudnn(const c10::OperatorHandle& op, torch::jit::Stack* stack,
               c10::DeviceIndex device);
void SdpaCudnnBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                       c10::DeviceIndex device);

// _flash_attention_forward, _efficient_attention_forward
void FlashForward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                  c10::DeviceIndex device);
void FlashBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                   c10::DeviceIndex device);
void EfficientForward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                      c10::DeviceIndex device);
void EfficientBackward(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                       c10::DeviceIndex device);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ATTENTION_ROUTES_H_
