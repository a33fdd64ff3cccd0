// SPDX-License-Identifier: Apache-2.0
// The op guard. For threads and failure see setup.h.
//
// What can ever need a restore lies in [stratalloc_evictable_lo, _hi), over all
// devices (evictable_range.h).
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_OPERATORS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_OPERATORS_H_

#include <span>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "python_shim/core/evictable_range.h"
#include "tiering/engine/access.h"

namespace stratalloc::core {

// Is the live block at this address of a class that may leave the device? False
// of an activation, and of what is not ours. No lock.
STRATALLOC_API bool MayLeave(Address address);

// Enter before an operator's kernel, leave after it returned or threw; calls
// nest and pair on one thread. Enter makes every accessed byte resident and
// pins it until leave; on failure nothing is pinned, leave must NOT be called,
// and the error names layer, tier and cause. `device`: where `stream` is; the
// accesses may be anywhere. `name` is used in messages only and must stay valid
// until leave. There may be no access (operators without evictable arguments
// still enter, so that what they allocate stays until they return).
STRATALLOC_API Status EnterOperator(int device, StreamId stream,
                                    const char* name,
                                    std::span<const Access> accesses);
// The error of EnterOperator, with the cause and the remedy behind a
// kOutOfMemory. A function of its own, because every operator pays for
// entering.
STRATALLOC_API Error Refusal(Error error, int device, StreamId stream,
                             std::span<const Access> accesses);
// The operator was refused for want of memory and is not tried otherwise: for
// the history and the event rings, and for who listens (c_api/refusals.h),
// which is what is said behind `message`, or "". No lock or GIL is held here
// that the listener may want.
STRATALLOC_API std::string TellRefusedOperator(int device, StreamId stream,
                                               const char* name,
                                               std::span<const Access> accesses,
                                               const std::string& message);
STRATALLOC_API void LeaveOperator();
// The innermost operator ends, and what it pinned stays until LeaveCall: a call
// into code that launches kernels of its own between the operators it runs
// (allocator/blocks/operator_thread.h). On one thread, properly nested with
// operators and other calls.
STRATALLOC_API void LeaveIntoCall();
STRATALLOC_API void LeaveCall();
// Is this thread inside an operator, or a call?
STRATALLOC_API bool InsideOperator();

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_OPERATORS_H_
