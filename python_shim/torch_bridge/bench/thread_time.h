// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_THREAD_TIME_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_THREAD_TIME_H_

#include <time.h>

namespace stratalloc {

// Nanoseconds that this thread has had a processor: what else the machine runs
// then costs caches only.
inline double ThreadCpuNanoseconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 +
         static_cast<double>(time.tv_nsec);
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_THREAD_TIME_H_
