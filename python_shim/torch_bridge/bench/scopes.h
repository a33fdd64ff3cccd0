// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_SCOPES_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_SCOPES_H_

#include "python_shim/torch_bridge/bench/bench_api.h"

extern "C" {

// Processor time in ns per push and pop of a scope by this thread, over
// `pairs`.
STRATALLOC_BENCH_API double stratalloc_bench_scopes_ns(int pairs);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_SCOPES_H_
