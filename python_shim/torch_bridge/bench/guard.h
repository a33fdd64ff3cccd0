// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_GUARD_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_GUARD_H_

#include "python_shim/torch_bridge/bench/bench_api.h"

extern "C" {

// The guard's price: the best of `rounds` mean times of a call of an operator
// whose kernel does nothing, with two tensors (list_elements = 0) or one list
// of so many. The operands are distinct and lie in so many `handles`, one each.
// The same after stratalloc_torch_remove_guard is what to subtract. CUDA is
// initialised and no other thread runs operators.
STRATALLOC_BENCH_API int stratalloc_bench_operator_ns(int list_elements,
                                                      int calls, int rounds,
                                                      double* nanoseconds,
                                                      int* handles,
                                                      char* message, int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_GUARD_H_
