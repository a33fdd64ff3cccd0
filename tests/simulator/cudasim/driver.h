// SPDX-License-Identifier: Apache-2.0
//
// driver.h: how driver functions answer, and what they are called where their
// text is shared with the runtime (runtime.h).

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_H_

#include <cuda.h>

#include "tests/simulator/cudasim/handles.h"
#include "tests/simulator/cudasim/simulator.h"

#define CUDASIM_ANSWER(status) static_cast<CUresult>(status)
// cuda.h may rename the function to its newest version; its name stays.
#define CUDASIM_CALL(name) CUresult CUDAAPI cu##name
#define CUDASIM_NAME(name) "cu" name

namespace cudasim {

// The runtime's, which differs, is in the same program where both are linked
// in.
namespace driver {
inline CUresult Answer(Status status) { return CUDASIM_ANSWER(status); }
}  // namespace driver

inline constexpr Entry kBroken = Entry::kAllowedWhenBroken;
inline constexpr Entry kQuestion = Entry::kQuestion;

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_H_
