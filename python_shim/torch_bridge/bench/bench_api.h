// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BENCH_API_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BENCH_API_H_

// What `stratalloc bench` calls through ctypes, in a library of its own. It is
// loaded behind the bridge and before stratalloc.enable(). Unless a comment
// says otherwise: returns 0, or 1 (2: out of memory) with the reason in
// `message`.
#define STRATALLOC_BENCH_API __attribute__((visibility("default")))

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BENCH_API_H_
