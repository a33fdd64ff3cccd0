// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/joined_list.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <vector>

namespace stratalloc {
namespace {

bool IsPlain(const at::Tensor& tensor, const at::Device& device) {
  return tensor.defined() && tensor.device() == device &&
         tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_nested();
}

at::Tensor EmptyLike(const at::Tensor& tensor, const at::Device& device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(device));
}

}  // namespace

std::optional<at::Tensor> JoinOneByOne(at::TensorList tensors, int64_t dim) {
  if (tensors.empty() || !tensors[0].defined()) return std::nullopt;
  const at::Device device = tensors[0].device();
  if (!std::all_of(tensors.begin(), tensors.end(),
                   [&](const at::Tensor& t) { return IsPlain(t, device); })) {
    return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // cat says of tensors without bytes what it makes: sizes, type, strides.
  std::vector<at::Tensor> shapes;
  shapes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back(EmptyLike(tensor, at::kMeta));
  }
  at::Tensor joined = EmptyLike(at::cat(shapes, dim), device);
  const int64_t along = at::maybe_wrap_dim(dim, joined.dim());
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;  // of any shape, if of one dimension
    joined.narrow(along, at, tensor.size(along)).copy_(tensor);
    at += tensor.size(along);
  }
  return joined;
}

}  // namespace stratalloc
