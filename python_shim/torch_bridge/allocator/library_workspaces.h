// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_LIBRARY_WORKSPACES_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_LIBRARY_WORKSPACES_H_

#include <cstddef>

namespace stratalloc {

// Calls each(context, address) for every workspace that torch keeps for cuBLAS
// and cuBLASLt: memory of our allocator that kernels use although no operator
// names it. The answer is torch's own two tables, so it holds for every size
// and for whatever the program was doing when one was made.
//
// Returns 0 if a table could not be read: another thread is changing it, and
// what was told so far is not all. Torch fills its tables with the lock held
// for a moment only (the allocation comes before it), so this waits up to a
// tenth of a second; not longer, because clearing a table frees memory under
// its lock, and whoever listens to frees from Python then wants the GIL, which
// a thread that waits for the caller may hold.
//
// Any thread. Takes torch's locks shared, without blocking: hold no lock that
// a free takes.
int ListLibraryWorkspaces(void (*each)(void* context, void* address),
                          void* context);

// Is this likely a workspace on its way into a table? `caller`: whoever called
// the allocator. It has the size that torch asks for, and no code that makes
// tensors or storages asks. For placement only: a workspace keeps its handles
// on the device, and this keeps it out of those of gradients and parameters. A
// workspace that is missed stays all the same, with what shares its handles.
// A tensor's memory is never taken for one. Costs two comparisons unless the
// size is one of the two; then about a microsecond.
bool IsWorkspaceInTheMaking(size_t size, const void* caller);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_LIBRARY_WORKSPACES_H_
