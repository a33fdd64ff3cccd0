// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/operator_plan.h"

#include <array>
#include <string_view>

namespace cudasim::bridge {
namespace {

// Operators that take CPU tensors of one or more dimensions beside CUDA ones on
// a real device too: indices, lengths, per-tensor scalars. Everything else must
// raise as the device does.
constexpr std::array<std::string_view, 11> kMixing = {
    "aten::index",
    "aten::_index_put_impl_",
    "aten::_ctc_loss_backward",
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_miopen_ctc_loss",
    "aten::_ctc_loss",
    "aten::repeat_interleave",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
    "aten::_chunk_cat",
    "aten::split_with_sizes_copy"};

// Families of list operators that fall back to one call per tensor.
constexpr std::array<std::string_view, 3> kMixingFamilies = {
    "aten::_foreach_", "aten::_fused_", "aten::_amp_"};

// Random seeds and offsets of attention: read by the host that launches the
// backward, so they never leave it.
struct HostReturns {
  std::string_view name;
  unsigned returns;
};
constexpr std::array<HostReturns, 4> kHostReturns = {{
    {"aten::_scaled_dot_product_efficient_attention", 0b1100},
    {"aten::_scaled_dot_product_cudnn_attention", 0b11000000},
    {"aten::_efficient_attention_forward", 0b1100},
    {"aten::_cudnn_attention_forward", 0b11000000},
}};

unsigned HostReturnsOf(std::string_view name) {
  for (const HostReturns& known : kHostReturns) {
    if (known.name == name) return known.returns;
  }
  return 0;
}

bool MixesDevices(std::string_view name) {
  const std::string_view base = name.substr(0, name.find('.'));
  for (std::string_view mixing : kMixing) {
    if (base == mixing) return true;
  }
  for (std::string_view family : kMixingFamilies) {
    if (base.substr(0, family.size()) == family) return true;
  }
  return false;
}

bool IsTensorLike(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return IsTensorLike(*type.containedType(0));
    default:
      return false;
  }
}

bool Holds(const c10::Type& type, c10::TypeKind kind) {
  return type.kind() == kind || (type.kind() == c10::TypeKind::OptionalType &&
                                 type.containedType(0)->kind() == kind);
}

// The position of the one written argument with the alias set of `wanted`.
int WrittenArgument(const c10::FunctionSchema& schema,
                    const c10::AliasInfo& wanted) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* info = arguments[i].alias_info();
    if (info != nullptr && info->isWrite() &&
        info->beforeSets() == wanted.beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

OperatorPlan::OperatorPlan(const c10::OperatorHandle& op)
    : name(c10::toString(op.operator_name())) {
  const c10::FunctionSchema& schema = op.schema();
  arguments = static_cast<int>(schema.arguments().size());
  returns = static_cast<int>(schema.returns().size());
  for (int i = 0; i < arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::Type& type = *argument.real_type();
    if (IsTensorLike(type)) {
      const c10::AliasInfo* info = argument.alias_info();
      const bool write = info != nullptr && info->isWrite();
      tensors.push_back({i, write});
      writes = writes || write;
    } else if (Holds(type, c10::TypeKind::GeneratorType)) {
      generator = i;
    } else if (Holds(type, c10::TypeKind::DeviceObjType)) {
      device = i;
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    const c10::AliasInfo* info = result.alias_info();
    return_argument.push_back(info != nullptr && info->isWrite()
                                  ? WrittenArgument(schema, *info)
                                  : -1);
  }
  mixes_devices = MixesDevices(name);
  host_returns = HostReturnsOf(name);
}

bool ReturnsView(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    const c10::AliasInfo* info = result.alias_info();
    if (info != nullptr && !info->isWrite()) return true;
  }
  return false;
}

}  // namespace cudasim::bridge
