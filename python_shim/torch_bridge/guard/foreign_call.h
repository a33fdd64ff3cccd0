// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_FOREIGN_CALL_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_FOREIGN_CALL_H_

#include "python_shim/torch_bridge/base/bridge_export.h"

// A call of Python's that reads and writes tensors past the dispatcher, so that
// the guard does not see them (NCCL's functions of torch.cuda.nccl), entered by
// hand as one operator: its operands are on the device and stay, and so does
// what it allocates, until it is left.
//
// Threads: any; leave on the thread that entered, properly nested with other
// calls and with operators. Waits for copies and for room, so call without the
// GIL, as ctypes does. Lifetime: every call that was entered must be left, also
// when what it was entered for raised; the tensors must live until then.
extern "C" {

typedef struct stratalloc_torch_call stratalloc_torch_call;

enum { STRATALLOC_TORCH_CALL_OPERATOR = 0, STRATALLOC_TORCH_CALL_FUNCTION = 1 };

// Enters `name` with the TensorImpl* of `count` tensors (Tensor._cdata), the
// first `written` of which will be written, on the current stream of each
// tensor's device. `copies`: what it allocates are copies of the tensors, which
// may leave when these may (evictable_copy.h). `kind`: _OPERATOR, or _FUNCTION
// for code that runs operators of its own besides
// (core::LeaveIntoCall); such a call is not entered if no tensor is
// on a CUDA device, and holds their tangents of forward mode as well. *out is
// NULL while nothing is evictable: nothing was entered.
//
// Returns 0; or 2 with the core's text if the tensors do not fit the device
// (torch.OutOfMemoryError), 1 with the reason for everything else, and then
// nothing is pinned.
STRATALLOC_BRIDGE_API int stratalloc_torch_call_enter(
    const char* name, const void* const* tensors, int count, int written,
    int copies, int kind, stratalloc_torch_call** out, char* message,
    int bytes);
// NULL is fine. 1 if nothing is under way any more and others took, while it
// was, the room of what it uses: an exception that begins with `message` is
// torch.OutOfMemoryError from here on. Else 0.
STRATALLOC_BRIDGE_API int stratalloc_torch_call_leave(
    stratalloc_torch_call* call, char* message, int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_FOREIGN_CALL_H_
