// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/collectives/collective_operator.h"

#include <ATen/core/class_type.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace stratalloc {
namespace {

constexpr std::string_view kClasses = "__torch__.torch.classes.c10d.";
constexpr std::string_view kWork = "__torch__.torch.classes.c10d.Work";
constexpr std::string_view kGroup = "__torch__.torch.classes.c10d.ProcessGroup";
// How operators without class types (symm_mem, custom ones) name a group.
constexpr std::string_view kGroupByName = "group_name";
constexpr std::string_view kAsync = "async_op";

// "" for what is no class.
std::string ClassName(const c10::Type& type) {
  if (const auto* named = type.castRaw<c10::ClassType>()) {
    return named->name() ? named->name()->qualifiedName() : std::string();
  }
  if (type.kind() == c10::TypeKind::OptionalType) {
    return ClassName(*type.containedType(0));
  }
  return {};
}

bool IsClassOfC10d(const c10::Argument& argument) {
  const std::string name = ClassName(*argument.type());
  return std::string_view(name).substr(0, kClasses.size()) == kClasses;
}

int IndexOf(const std::vector<c10::Argument>& all, std::string_view name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const c10::Argument& argument) {
        return ClassName(*argument.type()) == name;
      });
  return found == all.end() ? -1 : static_cast<int>(found - all.begin());
}

}  // namespace

Holder Unboxed(const c10::IValue& value) {
  if (!value.isObject()) return {};
  // The only slot of the object that torch makes for a class of C++.
  const auto& slots = value.toObjectRef().slots();
  if (slots.empty() || !slots[0].isCapsule()) return {};
  return slots[0].toCapsule();
}

bool NamesClassOfC10d(const c10::FunctionSchema& schema) {
  const auto any = [](const std::vector<c10::Argument>& all) {
    return std::any_of(all.begin(), all.end(), IsClassOfC10d);
  };
  return any(schema.arguments()) || any(schema.returns());
}

CollectiveOperator::CollectiveOperator(const c10::FunctionSchema& schema)
    : communicates_(NamesClassOfC10d(schema)),
      group_(IndexOf(schema.arguments(), kGroup)),
      work_(IndexOf(schema.returns(), kWork)),
      argument_count_(schema.arguments().size()),
      result_count_(schema.returns().size()) {
  for (size_t i = 0; i < argument_count_; ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == kGroupByName) communicates_ = true;
    if (name == kAsync) async_ = static_cast<int>(i);
  }
}

Holder CollectiveOperator::Group(const torch::jit::Stack& stack) const {
  if (group_ < 0) return {};
  return Unboxed(
      stack[stack.size() - argument_count_ + static_cast<size_t>(group_)]);
}

bool CollectiveOperator::IsSynchronous(const torch::jit::Stack& stack) const {
  if (async_ < 0) return false;
  const c10::IValue& value =
      stack[stack.size() - argument_count_ + static_cast<size_t>(async_)];
  return value.isBool() && !value.toBool();
}

c10::ArrayRef<c10::IValue> CollectiveOperator::Results(
    const torch::jit::Stack& stack) const {
  // In braces they would be two values of a new list.
  return c10::ArrayRef<c10::IValue>(
      stack.data() + (stack.size() - result_count_), result_count_);
}

Holder CollectiveOperator::Work(const torch::jit::Stack& stack) const {
  if (work_ < 0) return {};
  return Unboxed(Results(stack)[static_cast<size_t>(work_)]);
}

}  // namespace stratalloc
