// SPDX-License-Identifier: Apache-2.0
//
// The operator bridge's C functions (libcudasim_torch_2_N.so).
//
// Load the simulated libcuda.so.1 and libcudart.so.13, import torch, load this
// library, call cudasim_bridge_install(): from then on operators on CUDA
// tensors compute real numbers with PyTorch's CPU kernels on the bytes of the
// simulated device. Install before anything that registers kernels in front of
// the bridge's (an allocator's operator guard), and before other threads run
// operators. Nothing can be uninstalled.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_BRIDGE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_BRIDGE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Registers the kernels. Returns the number of bridged operators; a second call
// returns it again, after bridging what libraries registered since (which the
// next operator on the device would do as well). -1 if the simulated device is
// not loaded or PyTorch refused a registration: cudasim_bridge_error() says
// which. The caller has matched the torch minor version with the file name.
int cudasim_bridge_install(void);

// The reason of the last -1. Empty if there was none. Valid until the next
// install.
const char* cudasim_bridge_error(void);

// Operator calls computed so far.
long cudasim_bridge_count(void);

// Of these, calls on half or bfloat16 operands computed in float.
long cudasim_bridge_widened(void);

// Operators refused by name because they have only a CUDA kernel.
int cudasim_bridge_refused(void);

// Announces the address range of the allocator under test, and counts the CUDA
// storages met since that lie outside of it. Before an announcement the
// device's whole arena counts as inside.
void cudasim_bridge_set_reservation(uint64_t lo, uint64_t hi);
// The same for an allocator whose ranges come one by one: `holds` says of an
// address whether it is the allocator's.
void cudasim_bridge_set_owner(int (*holds)(uint64_t address));
long cudasim_bridge_storages_outside(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_BRIDGE_H_
