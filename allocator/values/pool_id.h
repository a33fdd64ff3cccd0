// SPDX-License-Identifier: Apache-2.0
// Which private pool (private_pool.h).
#ifndef STRATALLOC_ALLOCATOR_VALUES_POOL_ID_H_
#define STRATALLOC_ALLOCATOR_VALUES_POOL_ID_H_

#include <compare>
#include <cstdint>

namespace stratalloc {

// Torch's MempoolId_t: `graph` is set for pools that captures made for
// themselves, `user` for MemPool and graph_pool_handle. Both 0: no private
// pool, the device's own.
struct PoolId {
  std::uint64_t graph = 0;
  std::uint64_t user = 0;

  bool is_private() const { return graph != 0 || user != 0; }
  auto operator<=>(const PoolId&) const = default;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_POOL_ID_H_
