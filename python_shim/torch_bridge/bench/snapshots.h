// SPDX-License-Identifier: Apache-2.0
// C face of the bench: snapshots, ours and native's. For `stratalloc bench`.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_SNAPSHOTS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_SNAPSHOTS_H_

#include "python_shim/torch_bridge/bench/bench_api.h"

extern "C" {

// Times `rounds` snapshots while `blocks` blocks of 512 bytes are allocated,
// first ours, then native's: the nanoseconds of each, into arrays of `rounds`.
// Both allocators must be initialised.
STRATALLOC_BENCH_API int stratalloc_bench_snapshot_ns(int blocks, int rounds,
                                                      double* ours,
                                                      double* native,
                                                      char* message, int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_SNAPSHOTS_H_
