// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_ACCOUNTS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_ACCOUNTS_H_

#include <stdint.h>

#include "python_shim/torch_bridge/bench/bench_api.h"

// What accounting takes of a malloc and its free. The product always accounts,
// so this library has an allocator of its own, linked in, twice on device 0:
// one whose blocks are charged to a ledger, one where nobody keeps accounts.
// What else a malloc does is the same code in both, side by side.
//
// One thread, on the default stream, in its processor time. CUDA is
// initialised. Each call runs one round; the first makes the segments and is to
// be thrown away. Returns 0, or 1 with the reason.
extern "C" {

// `pairs` times: allocate 512 bytes, charged to a scope, and free them; with
// accounts or without.
STRATALLOC_BENCH_API int stratalloc_bench_account_pairs(int accounts, int pairs,
                                                        double* nanoseconds,
                                                        char* message,
                                                        int bytes);

// `pairs` times: enter a module's scope, leave it, and a malloc and a free
// inside, or else right after it; through torch's allocator, which has to be
// ours. The difference is what a scope's first malloc takes more than one that
// is nobody's, on top of the former.
STRATALLOC_BENCH_API int stratalloc_bench_scoped_pairs(int inside, int pairs,
                                                       double* nanoseconds,
                                                       char* message,
                                                       int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_ACCOUNTS_H_
