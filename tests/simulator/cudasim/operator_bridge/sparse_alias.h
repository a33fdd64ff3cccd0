// SPDX-License-Identifier: Apache-2.0
//
// Sparse tensors (COO, and the compressed layouts: CSR, CSC, BSR, BSC) taken
// apart and put together again: a sparse tensor is a few dense ones and a size,
// so its alias consists of their aliases and a sparse result of their results.
//
// Thread-safety: functions without state.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SPARSE_ALIAS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SPARSE_ALIAS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace cudasim::bridge {

bool IsSparse(const at::Tensor& tensor);

// What becomes of each dense part.
using PartChange = c10::function_ref<at::Tensor(const at::Tensor& part)>;

// A sparse tensor like `sparse` on `device` whose parts are `change` of its
// parts.
at::Tensor WithParts(const at::Tensor& sparse, c10::Device device,
                     PartChange change);

// Makes `target` what `source` is, parts by way of `change`: an in-place
// operator has rearranged the alias `source` of `target`.
void TakeParts(const at::Tensor& target, const at::Tensor& source,
               PartChange change);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SPARSE_ALIAS_H_
