// SPDX-License-Identifier: Apache-2.0
//
// runtime.h: how runtime functions answer. Every error is also kept as the
// thread's last error, as the real runtime does.

#ifndef STRATALLOC_TESTS_CUDASIM_RUNTIME_H_
#define STRATALLOC_TESTS_CUDASIM_RUNTIME_H_

#include <driver_types.h>

#include <cstdint>

#include "tests/cudasim/simulator.h"

#define CUDASIM_ANSWER(status) ::cudasim::Answer(status)

namespace cudasim {

inline cudaError_t Answer(Status status) {
  if (status != kOk) ThisThread().last_error = status;
  return static_cast<cudaError_t>(status);
}

template <typename Handle>
uint64_t Number(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

inline constexpr Entry kBroken = Entry::kAllowedWhenBroken;
inline constexpr Entry kQuestion = Entry::kQuestion;

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_RUNTIME_H_
