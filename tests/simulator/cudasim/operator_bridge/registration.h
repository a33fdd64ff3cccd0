// SPDX-License-Identifier: Apache-2.0
//
// Puts the bridge's kernels in front of PyTorch's own CUDA kernels.
//
// Every operator of the aten, quantized and quantization namespaces that has a
// kernel at the CUDA key falls into one of three groups:
//   kept      factories, views, resize_, set_, record_stream and
//             _local_scalar_dense: their real CUDA code launches nothing;
//   bridged   the CPU slot holds a kernel (the operator's own or a composite
//             one): BridgedKernel;
//   refused   only CUDA can compute it: RefusingKernel.
// A few composite operators that would pick a vendor library for CUDA tensors
// (convolution) are bridged too, although CUDA has no kernel of its own there.
//
// With numbers off the second and third group are MetaKernel's, but for the few
// operators whose shapes only CUDA knows, and attention keeps the card's
// choice.
//
// PyTorch's switches for cuDNN and fused attention stay as they are on a card:
// its choices are host code, and what they choose is bridged.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_REGISTRATION_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_REGISTRATION_H_

#include <ATen/core/dispatch/Dispatcher.h>

namespace cudasim::bridge {

struct Registered {
  int bridged = 0;
  int refused = 0;
  int kept = 0;
};

// REQUIRES: SimulatedDevice is connected; no other thread runs operators (the
// dispatch tables are not written atomically). Call once; the registrations
// live as long as the process.
Registered RegisterOperators();

// Bridges one operator that was registered afterwards, if it has kernels for
// both CUDA and the CPU and is no view. Any thread.
bool BridgeLate(const c10::OperatorHandle& op);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_REGISTRATION_H_
