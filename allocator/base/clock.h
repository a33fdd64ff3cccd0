// SPDX-License-Identifier: Apache-2.0
// Time in nanoseconds: monotonic, for durations only, and of the calendar,
// which may be set back, to say when something was.
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

// Since 1970.
inline std::int64_t UnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_CLOCK_H_
