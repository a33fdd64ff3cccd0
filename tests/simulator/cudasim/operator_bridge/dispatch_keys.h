// SPDX-License-Identifier: Apache-2.0
//
// Sets of dispatch keys that kernels of the bridge exclude or continue at.
//
// Thread-safety: constants.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_DISPATCH_KEYS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_DISPATCH_KEYS_H_

#include <c10/core/DispatchKeySet.h>

namespace cudasim::bridge {

inline constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
inline constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);
inline constexpr c10::DispatchKeySet kCudaOnly(c10::DispatchKey::CUDA);

// The CPU kernel runs below autograd and autocast, as the CUDA kernel would.
inline constexpr c10::DispatchKeySet kAboveBackends =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset;

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_DISPATCH_KEYS_H_
