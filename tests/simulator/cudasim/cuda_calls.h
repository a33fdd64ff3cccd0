// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CUDA_CALLS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CUDA_CALLS_H_

// What a test calls the way a program would: CUDA's own functions, which are
// cudasim's where a test links //tests/simulator/cudasim:cudasim_static. The
// one door for tests of other rooms; nothing but tests may include it.

// IWYU pragma: begin_exports
#include <cuda.h>
#include <cuda_runtime_api.h>
// IWYU pragma: end_exports

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CUDA_CALLS_H_
