// SPDX-License-Identifier: Apache-2.0
// Monotonic time in nanoseconds, for durations only.
#ifndef STRATALLOC_ALLOCATOR_BASE_CLOCK_H_
#define STRATALLOC_ALLOCATOR_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace stratalloc {

inline std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_CLOCK_H_
