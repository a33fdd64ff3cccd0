// SPDX-License-Identifier: Apache-2.0
//
// torch_minor.h: where the minors of PyTorch differ in what the bridge uses.
// One function per difference; the rest of the bridge knows none.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_TORCH_MINOR_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_TORCH_MINOR_H_

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace cudasim::bridge {

// A workspace in PyTorch's own table: memory alone, from 2.13 on with
// its size beside it.
template <typename Map>
void PutWorkspace(Map& table, const typename Map::key_type& key,
                  c10::DataPtr memory, size_t bytes) {
  if constexpr (std::is_same_v<typename Map::mapped_type, c10::DataPtr>) {
    table.try_emplace(key, std::move(memory));
  } else {
    table.try_emplace(key, std::move(memory), bytes);
  }
}

// What PyTorch would take for cuBLAS on the current device. 2.12 declares its
// own function and has it in no library: there, the wish of
// CUBLAS_WORKSPACE_CONFIG (":KiB:count" once or more), else PyTorch's default.
inline size_t CublasWorkspaceSize() {
#if TORCH_MINOR == 12
  size_t wished = 0;
  const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  while (text != nullptr && *text == ':') {
    char* end = nullptr;
    const size_t kib = std::strtoul(text + 1, &end, 10);
    if (*end != ':') break;
    wished += kib * 1024 * std::strtoul(end + 1, &end, 10);
    text = end;
  }
  if (wished > 0) return wished;
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  return major == 9 || major == 10 ? size_t{32} << 20
                                   : (size_t{8} << 20) + (size_t{128} << 10);
#else
  return at::cuda::getChosenWorkspaceSize();
#endif
}

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_TORCH_MINOR_H_
