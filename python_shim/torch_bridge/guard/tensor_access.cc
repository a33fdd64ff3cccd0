// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/tensor_access.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "python_shim/torch_bridge/collectives/collective_operator.h"

namespace stratalloc {
namespace {

// batch_norm and its relatives update their running statistics although the
// schema does not say so. Reading ones are called written too: they are small.
constexpr std::array<std::string_view, 2> kWrittenUnannounced = {"running_mean",
                                                                 "running_var"};

// Schemas of c10d do not say what is written: everything but what a name says
// is an input. Sent tensors are called written too.
constexpr std::string_view kInput = "input";

// These replace or resize the storage of their first argument.
constexpr std::array<std::string_view, 4> kResizing = {
    "aten::resize_", "aten::resize_as_", "aten::_resize_output_",
    "aten::resize_as_sparse_"};

// Gives its first argument another storage and touches no byte of the old one,
// which may be away and larger than the device.
constexpr std::string_view kSet = "aten::set_";

// Tells the core about a use, touches no byte: an evicted block stays away.
constexpr std::string_view kRecordStream = "aten::record_stream";

template <size_t N>
bool Contains(const std::array<std::string_view, N>& names,
              std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool HoldsTensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
    case c10::TypeKind::TupleType:
    case c10::TypeKind::DictType:
      return std::any_of(
          type.containedTypes().begin(), type.containedTypes().end(),
          [](const c10::TypePtr& inside) { return HoldsTensors(*inside); });
    default:
      return false;
  }
}

bool IsWritten(const c10::AliasInfo* alias) {
  if (alias == nullptr) return false;
  if (alias->isWrite()) return true;
  const auto& inside = alias->containedTypes();
  return std::any_of(inside.begin(), inside.end(),
                     [](const c10::AliasInfo& a) { return IsWritten(&a); });
}

bool IsInput(const c10::Argument& argument) {
  return std::string_view(argument.name()).substr(0, kInput.size()) == kInput;
}

constexpr c10::DispatchKeySet kBatched({c10::DispatchKey::FuncTorchBatched,
                                        c10::DispatchKey::BatchedNestedTensor});
constexpr c10::DispatchKeySet kWithoutPlainStorage =
    c10::DispatchKeySet({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                         c10::DispatchKey::NestedTensor,
                         c10::DispatchKey::Quantized,
                         c10::DispatchKey::FuncTorchGradWrapper}) |
    kBatched;

// What kernels read of a tensor that is quantized by channel.
const at::PerChannelAffineQuantizer* ByChannel(const c10::TensorImpl& tensor) {
  // quantizer() lacks a const only.
  auto& quantized =
      const_cast<at::QTensorImpl&>(static_cast<const at::QTensorImpl&>(tensor));
  const at::QScheme scheme = quantized.quantizer()->qscheme();
  return scheme == at::kPerChannelAffine ||
                 scheme == at::kPerChannelAffineFloatQParams
             ? static_cast<const at::PerChannelAffineQuantizer*>(
                   quantized.quantizer().get())
             : nullptr;
}

// Bytes from the storage's begin: where the tensor's first element lies and
// how far its last one reaches. False for what has no plain strides.
bool ElementSpan(const c10::TensorImpl& tensor, uint64_t* begin,
                 uint64_t* bytes) {
  if (tensor.has_symbolic_sizes_strides()) return false;
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  uint64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      *bytes = 0;
      return true;
    }
    last += static_cast<uint64_t>((sizes[i] - 1) * strides[i]);
  }
  const uint64_t item = tensor.itemsize();
  *begin = static_cast<uint64_t>(tensor.storage_offset()) * item;
  *bytes = (last + 1) * item;
  return true;
}

}  // namespace

const c10::TensorImpl* InsideFunctorch(const c10::TensorImpl& tensor) {
  if (tensor.key_set().has_any(kBatched)) {
    return static_cast<const at::functorch::BatchedTensorImpl&>(tensor)
        .value()
        .unsafeGetTensorImpl();
  }
  if (tensor.key_set().has(c10::DispatchKey::FuncTorchGradWrapper)) {
    return static_cast<const at::functorch::TensorWrapper&>(tensor)
        .value()
        .unsafeGetTensorImpl();
  }
  return nullptr;
}

OperatorSignature::OperatorSignature(const c10::FunctionSchema& schema)
    : argument_count_(schema.arguments().size()) {
  const bool resizes = Contains(kResizing, schema.name());
  const bool unannounced = NamesClassOfC10d(schema);
  for (size_t i = 0; i < argument_count_; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!HoldsTensors(*argument.type())) continue;
    has_tensors_ = true;
    if (schema.name() == kRecordStream) continue;
    if (schema.name() == kSet && i == 0) continue;
    TensorArgument entry;
    entry.index = static_cast<uint16_t>(i);
    entry.written = IsWritten(argument.alias_info()) ||
                    Contains(kWrittenUnannounced, argument.name()) ||
                    (unannounced && !IsInput(argument));
    entry.whole_storage = argument.is_out() || (resizes && i == 0);
    arguments_.push_back(entry);
  }
}

void AccessList::AddArguments(const OperatorSignature& signature,
                              const torch::jit::Stack& stack) {
  const c10::IValue* first =
      stack.data() + (stack.size() - signature.argument_count());
  for (const TensorArgument& argument : signature.arguments()) {
    AddValue(first[argument.index], argument);
  }
}

void AccessList::AddValue(const c10::IValue& value,
                          const TensorArgument& argument) {
  if (value.isTensor()) {
    AddTensor(*value.unsafeToTensorImpl(), argument.written,
              argument.whole_storage);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      AddValue(element, argument);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      AddValue(element, argument);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      AddValue(entry.value(), argument);
    }
  }
}

void AccessList::AddTensor(const c10::TensorImpl& tensor, bool written,
                           bool whole_storage) {
  if (!tensor.is_cuda()) return;
  const int device = tensor.device().index();
  if (device_ < 0) {
    device_ = device;
  } else if (device != device_) {
    several_devices_ = true;
  }
  if (C10_LIKELY(!tensor.key_set().has_any(kWithoutPlainStorage))) {
    AddStorage(tensor, written, whole_storage);
    return;
  }
  // The parts hold the bytes, and kernels read them past the dispatcher.
  const auto add_part = [&](const at::TensorBase& part) {
    if (part.defined()) AddTensor(*part.unsafeGetTensorImpl(), written, true);
  };
  // functorch's first: what they wrap may be any of the others, and their keys
  // say so.
  if (const c10::TensorImpl* const inside = InsideFunctorch(tensor)) {
    AddTensor(*inside, written, whole_storage);
  } else if (tensor.is_sparse()) {
    const auto& sparse = static_cast<const at::SparseTensorImpl&>(tensor);
    add_part(sparse.indices());
    add_part(sparse.values());
  } else if (tensor.is_sparse_compressed()) {
    const auto& sparse = static_cast<const at::SparseCsrTensorImpl&>(tensor);
    add_part(sparse.compressed_indices());
    add_part(sparse.plain_indices());
    add_part(sparse.values());
  } else if (tensor.is_quantized()) {
    AddStorage(tensor, written, whole_storage);
    if (const at::PerChannelAffineQuantizer* quantizer = ByChannel(tensor)) {
      add_part(quantizer->scales());
      add_part(quantizer->zero_points());
    }
  } else {
    AddStorage(tensor, written, true);
    const auto* nested =
        dynamic_cast<const at::native::NestedTensorImpl*>(&tensor);
    if (nested != nullptr) add_part(nested->get_nested_sizes());
  }
}

void AccessList::AddStorage(const c10::TensorImpl& tensor, bool written,
                            bool whole_storage) {
  if (!tensor.has_storage()) return;
  const c10::Storage& storage = tensor.unsafe_storage();
  if (!storage) return;
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const auto base =
      reinterpret_cast<uint64_t>(impl->_mutable_data_ptr_no_checks().get());
  // One comparison dismisses transients: evictable classes have addresses of
  // their own.
  if (base - lo_ >= hi_ - lo_) return;
  const uint64_t storage_bytes = impl->nbytes();
  uint64_t begin = 0;
  uint64_t bytes = storage_bytes;
  if (!whole_storage && ElementSpan(tensor, &begin, &bytes)) {
    begin = std::min(begin, storage_bytes);
    bytes = std::min(bytes, storage_bytes - begin);
  }
  if (bytes == 0) return;
  // Filled where it lies: copied there, its 16 bytes would be loaded at once
  // while the stores of 8 are on their way (5 ns).
  accesses_.resize_for_overwrite(accesses_.size() + 1);
  Access& access = accesses_.back();
  access.address = base + begin;
  access.bytes = bytes;
  access.written = written;
  devices_.push_back(static_cast<int8_t>(tensor.device().index()));
}

}  // namespace stratalloc
