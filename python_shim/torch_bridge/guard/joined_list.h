// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_JOINED_LIST_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_JOINED_LIST_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

namespace stratalloc {

// `cat` for operands that do not fit the device together: its result is made
// empty, or is `out` (defined: cat.out), which gets the size that cat gives it,
// and each operand is copied to its place, an operator of its own, which
// converts as cat's kernel does. The result is the same bit for bit; it and one
// operand have to fit.
//
// nullopt where the operands are of a kind that cat treats otherwise (none, on
// several devices, sparse, quantized, nested, `out` among them): the caller
// says what it would have. Throws what cat's own check of shapes and types
// throws, and OutOfMemoryError. Called from any thread; nothing of the call is
// kept.
std::optional<at::Tensor> JoinOneByOne(at::TensorList tensors, int64_t dim,
                                       at::Tensor out = {});

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_JOINED_LIST_H_
