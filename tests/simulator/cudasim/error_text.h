// SPDX-License-Identifier: Apache-2.0
//
// error_text.h: names and sentences of CUDA's error numbers.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_ERROR_TEXT_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_ERROR_TEXT_H_

namespace cudasim {

// nullptr for a number that is none of CUDA's this device can answer with or
// be told to.
const char* ErrorText(int error);
const char* DriverErrorName(int error);   // "CUDA_ERROR_OUT_OF_MEMORY"
const char* RuntimeErrorName(int error);  // "cudaErrorMemoryAllocation"

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_ERROR_TEXT_H_
