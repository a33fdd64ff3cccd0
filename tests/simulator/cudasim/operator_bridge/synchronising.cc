// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/synchronising.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

namespace cudasim::bridge {
namespace {

// Without their overloads.
constexpr std::array<std::string_view, 17> kAlways = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_dim_consecutive",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::_bincount",
    "aten::multinomial",
    "aten::linalg_eig",
    "aten::_linalg_eigvals",
    "aten::_ctc_loss",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::item",
};

// Masks become indices, and how many there are only the device knows.
bool HasMask(const c10::IValue& indices) {
  if (!indices.isList()) return false;
  const auto list = indices.toListRef();
  return std::any_of(list.begin(), list.end(), [](const c10::IValue& each) {
    if (!each.isTensor() || !each.toTensor().defined()) return false;
    const auto type = each.toTensor().scalar_type();
    return type == at::kBool || type == at::kByte;
  });
}

}  // namespace

bool Synchronises(std::string_view name, const torch::jit::Stack& stack,
                  size_t first) {
  const std::string_view base = name.substr(0, name.find('.'));
  if (std::find(kAlways.begin(), kAlways.end(), base) != kAlways.end()) {
    return true;
  }
  if (base == "aten::index" || base == "aten::_unsafe_index" ||
      base == "aten::_index_put_impl_" || base == "aten::index_put_") {
    return HasMask(stack[first + 1]);
  }
  // Without output_size.
  if (name == "aten::repeat_interleave.Tensor") return stack.back().isNone();
  return false;
}

}  // namespace cudasim::bridge
