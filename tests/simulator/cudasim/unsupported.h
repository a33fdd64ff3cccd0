// SPDX-License-Identifier: Apache-2.0
//
// unsupported.h: the functions that exist only to fail by name.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_UNSUPPORTED_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_UNSUPPORTED_H_

namespace cudasim {

// The failing stub of a driver function, or nullptr if there is none of that
// name.
void* FindUnsupportedDriverFunction(const char* name);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_UNSUPPORTED_H_
