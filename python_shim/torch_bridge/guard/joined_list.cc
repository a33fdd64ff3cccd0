// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/joined_list.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>
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

// cat refuses to write what it reads.
bool IsAmong(at::TensorList tensors, const at::Tensor& out) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& t) { return t.is_alias_of(out); });
}

at::Tensor EmptyLike(const at::Tensor& tensor, const at::Device& device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(device));
}

}  // namespace

std::optional<at::Tensor> JoinOneByOne(at::TensorList tensors, int64_t dim,
                                       at::Tensor out) {
  if (tensors.empty() || !tensors[0].defined()) return std::nullopt;
  const at::Device device = tensors[0].device();
  if (!std::all_of(tensors.begin(), tensors.end(),
                   [&](const at::Tensor& t) { return IsPlain(t, device); })) {
    return std::nullopt;
  }
  const bool given = out.defined();
  if (given && (!IsPlain(out, device) || IsAmong(tensors, out))) {
    return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // cat says of tensors without bytes what it makes: sizes, type, strides.
  std::vector<at::Tensor> shapes;
  shapes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back(EmptyLike(tensor, at::kMeta));
  }
  const at::Tensor shape = at::cat(shapes, dim);
  at::Tensor joined = out;
  if (!given) {
    joined = EmptyLike(shape, device);
  } else {
    TORCH_CHECK_TYPE(
        c10::canCast(shape.scalar_type(), out.scalar_type()),
        "torch.cat(): input types can't be cast to the desired output type ",
        out.scalar_type());
    // Warns of an `out` that had another size, and bytes.
    if (at::native::resize_output(out, shape.sizes())) {
      joined.as_strided_(shape.sizes(), shape.strides());
    }
  }
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
