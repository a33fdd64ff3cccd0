// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LIST_SLICES_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LIST_SLICES_H_

#include "python_shim/torch_bridge/guard/guard_kernel.h"

namespace stratalloc {

// Do the operands of this call fit the device as they are, with what it will
// make? True for operators that run whole in any case, without asking.
bool FitsWhole(const ListOperator& list, const AccessList& accesses);

inline bool NeedsSlices(const GuardedOperator& guarded,
                        const AccessList& accesses) {
  return guarded.list.MayBeSliced() && !FitsWhole(guarded.list, accesses);
}

// After the whole call ran out of memory: would slices help, and may the call
// run again? They fit by bytes, but what is free may lie in pieces under what
// the call itself uses.
bool SlicesMayHelp(const ListOperator& list, const AccessList& accesses);

// Runs the operator whose arguments are on `stack` in slices of its lists, the
// previous kernel once per slice, and puts its results there. False, and
// nothing happened, if the lists of this call cannot be sliced.
//
// Each slice has an OperatorPin of its own and there is none around them all:
// what a slice used or made may leave while the next one runs. A slice that the
// core refuses for want of memory, before its kernel began, is halved; one
// element that is refused throws OutOfMemoryError; one that takes more than
// could leave is tried before the first slice runs. No kernel runs twice over
// the same element, and what a kernel throws is passed on with the slices
// before it done, as when an operator fails in the middle of its lists.
//
// PyTorch's kernels choose between a fast and a slow route by looking at all
// elements; with lists of mixed kinds a slice may take another one than the
// whole would, and differ from it in the last bits.
//
// An operator that writes nothing (ListOperator::MayRunAgain) and whose kernel
// runs out of memory in a slice runs that slice again, halved. One that joins
// (ListOperator::Joins) copies its operands one by one (joined_list.h).
bool RunInSlices(const GuardedOperator& guarded, uint64_t lo, uint64_t hi,
                 c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LIST_SLICES_H_
