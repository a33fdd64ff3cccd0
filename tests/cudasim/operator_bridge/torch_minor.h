// SPDX-License-Identifier: Apache-2.0
//
// torch_minor.h: where the minors of PyTorch differ in what the bridge uses.
// One function per difference; the rest of the bridge knows none.

#ifndef STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_TORCH_MINOR_H_
#define STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_TORCH_MINOR_H_

#include <c10/core/Allocator.h>

#include <cstddef>
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

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_TORCH_MINOR_H_
