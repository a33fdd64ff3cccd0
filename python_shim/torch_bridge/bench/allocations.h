// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_ALLOCATIONS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_ALLOCATIONS_H_

#include <stdint.h>

#include "python_shim/torch_bridge/bench/bench_api.h"

// Rounds of work for one of two allocators in the same process: ours (native =
// 0) or torch's own (native = 1), both initialised and both reached through
// c10::Allocator, as a tensor's storage reaches them. Each call runs one round
// and gives the nanoseconds of all of it; the caller alternates the two, and
// throws the first round away, because it makes the segments and touches code
// and memory for the first time.
//
// One thread works on the default stream; its time is the thread's processor
// time, since nothing here waits: what else the machine runs then costs caches
// only. With wall time a round of 2 ms on a busy machine is either preempted
// or not, and is off by ten times. Two threads have streams of their own and
// work on their own blocks; theirs is wall time, from the first to begin until
// the last to end, since they may wait for each other.
// Each call returns 0, or 1 with the reason.
extern "C" {

// Lets both give back what they cache, and turns the history of events on or
// off in both: `entries` of them, no contexts.
STRATALLOC_BENCH_API int stratalloc_bench_prepare(int history, uint64_t entries,
                                                  char* message, int bytes);

// `pairs` times per thread: allocate `size` bytes, free them.
STRATALLOC_BENCH_API int stratalloc_bench_pairs(int native, uint64_t size,
                                                int pairs, int threads,
                                                double* nanoseconds,
                                                char* message, int bytes);

// One thread allocates `pairs` blocks, another frees them; at most 64 are on
// their way.
STRATALLOC_BENCH_API int stratalloc_bench_handover(int native, uint64_t size,
                                                   int pairs,
                                                   double* nanoseconds,
                                                   char* message, int bytes);

// One operation of a recorded or made-up trace. `stream` counts from 0, the
// first of the thread's. A block is allocated once, before it is used, and
// freed at most once; what is left is freed after the time is taken.
struct stratalloc_bench_operation {
  uint8_t kind;  // 0 malloc, 1 free, 2 record_stream, 3 empty_cache
  uint8_t stream;
  uint16_t unused;
  uint32_t block;  // below `blocks`
  uint64_t size;   // malloc only
};
STRATALLOC_BENCH_API int stratalloc_bench_operations(
    int native, const struct stratalloc_bench_operation* operations,
    uint64_t count, uint64_t blocks, int streams, int threads,
    double* nanoseconds, char* message, int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BENCH_ALLOCATIONS_H_
