// SPDX-License-Identifier: Apache-2.0
//
// handles.h: the handles of driver and runtime as numbers, which is what the
// simulator keeps. Both are one machine word.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_HANDLES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_HANDLES_H_

#include <cstdint>

namespace cudasim {

template <typename Handle>
uint64_t Number(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

template <typename Handle>
uint64_t* Out(Handle* handle) {
  return reinterpret_cast<uint64_t*>(handle);
}

template <typename Handle>
const uint64_t* In(const Handle* handles) {
  return reinterpret_cast<const uint64_t*>(handles);
}

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_HANDLES_H_
