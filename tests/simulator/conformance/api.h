// SPDX-License-Identifier: Apache-2.0
//
// api.h: CUDA as the suite calls it, found by name at run time. The same
// binary looks at the simulated device and at a real driver, and nothing of
// either is linked: `api.cudaMalloc(...)` is whatever the opened libraries
// have under that name.
//
// Filled once by LoadApi before the first case; read-only afterwards. A name
// that is in neither library is a null pointer, and calling it ends the
// case's process.

#ifndef STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_API_H_
#define STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_API_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace conformance {

struct Api {
#define RUNTIME(name) decltype(&::name) name = nullptr;
#define DRIVER(name) decltype(&::name) name = nullptr;
#include "tests/simulator/conformance/functions.inc"
#undef RUNTIME
#undef DRIVER
};

extern Api api;

// Opens both libraries and fills `api`. Returns the names not found, or one
// sentence if a library cannot be opened.
std::vector<std::string> LoadApi(const std::string& cuda,
                                 const std::string& cudart);

}  // namespace conformance

#endif  // STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_API_H_
