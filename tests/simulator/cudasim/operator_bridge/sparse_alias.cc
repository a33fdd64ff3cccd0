// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/sparse_alias.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>

namespace cudasim::bridge {
namespace {

at::SparseTensorImpl* Coo(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* Compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace

bool IsSparse(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case c10::kSparse:
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      return true;
    default:
      return false;
  }
}

at::Tensor WithParts(const at::Tensor& sparse, c10::Device device,
                     PartChange change) {
  const auto options = at::TensorOptions()
                           .dtype(sparse.scalar_type())
                           .layout(sparse.layout())
                           .device(device);
  if (sparse.layout() == c10::kSparse) {
    const at::SparseTensorImpl* impl = Coo(sparse);
    const at::Tensor indices = change(impl->indices());
    return at::_sparse_coo_tensor_unsafe(indices, change(impl->values()),
                                         sparse.sizes(), options,
                                         impl->coalesced());
  }
  const at::SparseCsrTensorImpl* impl = Compressed(sparse);
  const at::Tensor compressed = change(impl->compressed_indices());
  const at::Tensor plain = change(impl->plain_indices());
  return at::_sparse_compressed_tensor_unsafe(
      compressed, plain, change(impl->values()), sparse.sizes(), options);
}

void TakeParts(const at::Tensor& target, const at::Tensor& source,
               PartChange change) {
  if (source.layout() == c10::kSparse) {
    const at::SparseTensorImpl* from = Coo(source);
    at::SparseTensorImpl* to = Coo(target);
    const at::Tensor indices = change(from->indices());
    const at::Tensor values = change(from->values());
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), source.sizes());
    to->set_indices_and_values_unsafe(indices, values);
    to->set_coalesced(from->coalesced());
    return;
  }
  at::SparseCsrTensorImpl* from = Compressed(source);
  const at::Tensor compressed = change(from->compressed_indices());
  const at::Tensor plain = change(from->plain_indices());
  Compressed(target)->set_member_tensors(
      compressed, plain, change(from->values()), source.sizes());
}

}  // namespace cudasim::bridge
