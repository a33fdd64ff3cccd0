// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_TESTING_RECORDING_CORE_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_TESTING_RECORDING_CORE_H_

#include <stdint.h>

#include "allocator/base/export.h"

// A core for tests of the torch bridge alone: the functions of bridge_api/ that
// the bridge calls, one cudaMalloc per block, no pools and no tiers. It records
// what the bridge tells it and fails where a test asks it to. Loaded in the
// place of the real libstratalloc.so (same soname, loaded first).
//
// Thread-safety: all functions, any thread, one lock.
extern "C" {

// From now on these addresses count as evictable; both 0 = tiering off.
STRATALLOC_API void recording_set_evictable(uint64_t lo, uint64_t hi);

// EnterOperator fails with `code` and `message` for operators whose name holds
// `part`; "" = none.
STRATALLOC_API void recording_fail_operator(const char* part, int code,
                                            const char* message);
// What list operators are told: they run whole up to `room` bytes of operands
// and results, and in slices of no more otherwise. Entering with more than
// `most` bytes is out of memory. 0 = no such bound.
STRATALLOC_API void recording_set_room(uint64_t room, uint64_t most);
// The next `count` mallocs fail: out of memory.
STRATALLOC_API void recording_fail_mallocs(int count);
// The same with kOusted.
STRATALLOC_API void recording_oust_mallocs(int count);

// What is said of each refusal from now on, and how often such operators, or
// mallocs ("malloc"), were told of since the last clear.
STRATALLOC_API void recording_say(const char* line);
STRATALLOC_API int recording_told(const char* name);

// How often EnterOperator succeeded, the device of the last time, and
// operators entered but not left on this thread.
STRATALLOC_API long recording_enters(void);
STRATALLOC_API int recording_device(void);
STRATALLOC_API int recording_open(void);
// Access number `i` of the last enter of an operator whose name holds `part`:
// {address, bytes, written, its count of accesses}; 0 if there was none.
STRATALLOC_API int recording_access(const char* part, int i, uint64_t out[4]);
// Blocks that are pinned beyond an operator now, and pins that were taken back
// with (1) or without (0) knowing what had happened.
STRATALLOC_API long recording_pinned(void);
STRATALLOC_API long recording_unpinned(int unobserved);
// Victims are chosen.
STRATALLOC_API void recording_poll(void);
// New memory is about to be taken; 1 if somebody freed some instead.
STRATALLOC_API int recording_free_memory(void);
// Hint of malloc number `i` since the last clear; -1 past the end.
STRATALLOC_API int recording_hint(int i);
STRATALLOC_API void recording_clear(void);
STRATALLOC_API long recording_stream_records(void);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_TESTING_RECORDING_CORE_H_
