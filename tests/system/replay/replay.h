// SPDX-License-Identifier: Apache-2.0
//
// replay.h: one recorded trace, run through whatever allocator torch has.
//
// It knows c10's interface only, so the same code runs native, native with
// expandable segments and ours. Called by worker.py through ctypes, one call at
// a time, in a process that has loaded torch. Blocks live until the trace frees
// them or the call ends; the caller keeps `ops` alive and has validated it
// (trace.py): each block is allocated once, before it is used, and freed at
// most once.

#ifndef STRATALLOC_TESTS_SYSTEM_REPLAY_REPLAY_H_
#define STRATALLOC_TESTS_SYSTEM_REPLAY_REPLAY_H_

#include <stdint.h>

extern "C" {

// 16 bytes, written by trace.py. `stream` counts from 0, the default stream.
struct replay_op {
  uint8_t kind;  // 0 malloc, 1 free, 2 record_stream, 3 empty_cache
  uint8_t stream;
  uint16_t unused;
  uint32_t block;
  uint64_t size;  // malloc only
};

// In bytes. allocated_at_reserved is the smallest when several operations see
// the peak of reserved; reserved_at_allocated likewise the largest.
struct replay_peaks {
  int64_t reserved;
  int64_t allocated;
  int64_t reserved_at_allocated;
  int64_t allocated_at_reserved;
};

// Runs the trace once on the current device. With `peaks` the statistics are
// read after every malloc; without, nothing is read and `nanoseconds` is the
// whole run's time. 0, or 1 with `message`.
__attribute__((visibility("default"))) int replay_run(
    const replay_op* ops, uint64_t count, uint64_t blocks, int streams,
    replay_peaks* peaks, double* nanoseconds, char* message, int bytes);

}  // extern "C"

#endif  // STRATALLOC_TESTS_SYSTEM_REPLAY_REPLAY_H_
