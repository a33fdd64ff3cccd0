// SPDX-License-Identifier: Apache-2.0
//
// driver_entry.h: driver functions by name, as cuGetProcAddress and
// cudaGetDriverEntryPointByVersion answer.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_ENTRY_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_ENTRY_H_

#include <string>

namespace cudasim {

// The newest version of the function; for functions the simulated device does
// not have, a stub that fails by name; nullptr for names that are no driver
// function.
void* FindDriverFunction(const char* name);

// True if the simulated device has the function, by its name without suffix.
bool HasDriverFunction(const char* name);

// The CUDA version that brought the function, 0 for those older than 10.2.
unsigned IntroducedIn(const std::string& name);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_ENTRY_H_
