// SPDX-License-Identifier: Apache-2.0
// Time as cheap as this machine has it, in ticks, for what is timed on a hot
// path: the time-stamp counter where it runs at one rate on every core and in
// every sleep state (10 ns to read), else NowNs() (22 ns), a tick then being a
// nanosecond.
//
// Thread-safety: any. Nothing here can fail. Ticks of two threads may differ by
// what the cores' counters do; whoever subtracts allows for that.
#ifndef STRATALLOC_ALLOCATOR_BASE_TICKS_H_
#define STRATALLOC_ALLOCATOR_BASE_TICKS_H_

#include <cstdint>

#include "allocator/base/clock.h"

namespace stratalloc {

namespace internal {
// Decided before main().
extern const bool has_steady_counter;
}  // namespace internal

inline std::uint64_t NowTicks() {
  if (__builtin_expect(internal::has_steady_counter, 1))
    return __builtin_ia32_rdtsc();
  return static_cast<std::uint64_t>(NowNs());
}

// Measured since the process began, by two looks at both clocks: the longer
// ago, the more exact. 1 if ticks are nanoseconds.
double NsPerTick();

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_TICKS_H_
