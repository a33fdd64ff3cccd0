// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TYPED_GUARD_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TYPED_GUARD_H_

#include <torch/library.h>

#include <optional>

#include "python_shim/torch_bridge/guard/guard_kernel.h"

namespace stratalloc {

// The guard of an operator whose C++ type is one of those listed in
// typed_guard.cc: its arguments pass as they came. The boxed one makes a list
// of them for each call and a new list of tensors for each list, twice; with
// 200 tensors that was 60 % of what the guard cost.
//
// Nothing if the type is not listed or the kernel in front of which it would
// stand is a boxed one itself: then nothing is gained, and a C++ type that
// torch did not know would bind later callers to it.
//
// What it makes is owned by the dispatcher; immutable, called from any thread.
std::optional<torch::CppFunction> MakeTypedGuard(
    const GuardedOperator& guarded);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TYPED_GUARD_H_
