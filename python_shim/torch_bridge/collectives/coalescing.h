// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COALESCING_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COALESCING_H_

#include "python_shim/torch_bridge/base/bridge_export.h"

// Between a process group's _start_coalescing and _end_coalescing its operators
// launch nothing. Both are functions of Python's that no operator shows, so
// _hooks/collectives.py wraps them and tells what it saw by two operators,
// which take boxed objects of c10d as no C function could:
//
//   stratalloc::coalescing_begins(ProcessGroup group) -> ()
//   stratalloc::coalescing_ends(ProcessGroup group, Work? work) -> ()
//
// From any thread, for any group; see collectives_under_way.h.
extern "C" {

// Defines them. Idempotent. Returns 0, or 1 with the reason: a torch without
// distributed does not know the classes.
STRATALLOC_BRIDGE_API int stratalloc_torch_follow_coalescing(char* message,
                                                             int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COALESCING_H_
