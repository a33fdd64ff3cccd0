// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BACKWARD_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BACKWARD_H_

#include "python_shim/torch_bridge/bench/bench_api.h"

extern "C" {

// Who follows autograd's nodes from now on, on every thread: nobody (0), the
// bridge (1), as ever, or a callback that does nothing (2), which is what torch
// takes for calling one. An error where the bridge does not, or somebody else
// does, too. No node runs meanwhile.
STRATALLOC_BENCH_API int stratalloc_bench_follow_backward(int who,
                                                          char* message,
                                                          int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_BACKWARD_H_
