// SPDX-License-Identifier: Apache-2.0
//
// runtime.h: how runtime functions answer, and what they are called where their
// text is shared with the driver (driver.h). Every error is also kept as the
// thread's last error, as the real runtime does.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_RUNTIME_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_RUNTIME_H_

#include <driver_types.h>

#include "tests/simulator/cudasim/handles.h"
#include "tests/simulator/cudasim/simulator.h"

#define CUDASIM_ANSWER(status) ::cudasim::Answer(status)
#define CUDASIM_CALL(name) cudaError_t CUDARTAPI cuda##name
#define CUDASIM_NAME(name) "cuda" name

namespace cudasim {

// What is not ready is an answer, and no error that the runtime keeps.
inline cudaError_t Answer(Status status) {
  if (status != kOk && status != kNotReady) ThisThread().last_error = status;
  return static_cast<cudaError_t>(status);
}

inline constexpr Entry kBroken = Entry::kAllowedWhenBroken;
inline constexpr Entry kQuestion = Entry::kQuestion;

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_RUNTIME_H_
