// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/list_operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace stratalloc {
namespace {

constexpr std::array<std::string_view, 3> kElementByElement = {
    "aten::_foreach_", "aten::_fused_",
    "aten::_amp_foreach_non_finite_check_and_unscale_"};

constexpr std::string_view kJoins = "aten::cat";

// A tensor that holds one number per element (addcmul and addcdiv).
constexpr std::string_view kNumberPerElement = "scalars";

bool ActsElementByElement(std::string_view name) {
  return std::any_of(
      kElementByElement.begin(), kElementByElement.end(),
      [&](std::string_view family) { return name.starts_with(family); });
}

bool IsListOf(const c10::Type& type, c10::TypeKind kind) {
  return type.kind() == c10::TypeKind::ListType &&
         type.containedType(0)->kind() == kind;
}

size_t LengthOf(const c10::IValue& value) {
  if (value.isList()) return value.toListRef().size();
  const at::Tensor& numbers = value.toTensor();
  return numbers.dim() == 1 ? static_cast<size_t>(numbers.size(0)) : 0;
}

c10::IValue Part(const c10::IValue& value, size_t first, size_t count) {
  if (value.isTensor()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return value.toTensor().narrow(0, static_cast<int64_t>(first),
                                   static_cast<int64_t>(count));
  }
  const c10::List<c10::IValue> whole = value.toList();
  c10::impl::GenericList part(whole.elementType());
  part.reserve(count);
  for (const c10::IValue& element : value.toListRef().slice(first, count)) {
    part.push_back(element);
  }
  return part;
}

}  // namespace

ListOperator::ListOperator(const c10::FunctionSchema& schema) {
  if (schema.name() == kJoins &&
      (schema.overload_name().empty() || schema.overload_name() == "out")) {
    joins_ = may_run_again_ = true;
  }
  if (!ActsElementByElement(schema.name())) return;
  std::vector<uint16_t> sliced;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::Type& type = *argument.real_type();
    const auto index = static_cast<uint16_t>(i);
    if (IsListOf(type, c10::TypeKind::TensorType)) {
      tensor_lists_.push_back(index);
      sliced.push_back(index);
    } else if (IsListOf(type, c10::TypeKind::NumberType) ||
               (type.kind() == c10::TypeKind::TensorType &&
                argument.name() == kNumberPerElement)) {
      sliced.push_back(index);
    }
  }
  if (tensor_lists_.empty() || schema.returns().size() > 1) return;
  if (!schema.returns().empty()) {
    const c10::Argument& result = schema.returns()[0];
    if (!IsListOf(*result.real_type(), c10::TypeKind::TensorType) ||
        result.alias_info() != nullptr) {
      return;
    }
    returns_list_ = true;
    const auto& all = schema.arguments();
    may_run_again_ =
        std::none_of(all.begin(), all.end(), [](const c10::Argument& argument) {
          return argument.alias_info() != nullptr &&
                 argument.alias_info()->isWrite();
        });
  }
  sliced_ = std::move(sliced);
}

size_t ListOperator::ElementsOf(c10::ArrayRef<c10::IValue> arguments) const {
  if (!MayBeSliced()) return 0;
  const size_t elements = LengthOf(arguments[tensor_lists_[0]]);
  if (elements < 2) return 0;
  for (const uint16_t index : sliced_) {
    const size_t length = LengthOf(arguments[index]);
    const bool unused = length == 0 && arguments[index].isTensorList();
    if (length != elements && !unused) return 0;
  }
  return elements;
}

std::vector<c10::IValue> ListOperator::Slice(
    c10::ArrayRef<c10::IValue> arguments, size_t first, size_t count) const {
  std::vector<c10::IValue> part(arguments.begin(), arguments.end());
  for (const uint16_t index : sliced_) {
    if (LengthOf(part[index]) > 0) {
      part[index] = Part(arguments[index], first, count);
    }
  }
  return part;
}

}  // namespace stratalloc
