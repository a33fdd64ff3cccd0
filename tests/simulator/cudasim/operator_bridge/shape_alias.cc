// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/shape_alias.h"

#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/Allocator.h>

#include <cstdlib>

#include "tests/simulator/cudasim/operator_bridge/alias_parts.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"

namespace cudasim::bridge {
c10::Storage ShapeAliasSet::MakeStorage(size_t bytes) {
  c10::DataPtr data(nullptr, c10::Device(place_));
  if (place_ == c10::kCPU && bytes != 0) {
    void* const zeros = std::calloc(bytes, 1);
    TORCH_CHECK(zeros != nullptr, "the simulated device: no ", bytes,
                " bytes of zeros for operator ", log_.operator_name());
    data = c10::DataPtr(zeros, zeros, &std::free, c10::Device(place_));
  }
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      std::move(data), c10::GetAllocator(place_), /*resizable=*/true);
}

at::Tensor ShapeAliasSet::Alias(const at::Tensor& original, bool write) {
  at::TensorImpl* impl = original.unsafeGetTensorImpl();
  if (Entry* known = Find(impl)) {
    if (write && !known->write) {
      known->write = true;
      log_.Add(*impl, true);
    }
    return known->alias;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      original.layout() == c10::kStrided && impl->has_storage() &&
          !original.is_quantized() && !original._is_zerotensor(),
      "the simulated device computes on dense strided tensors only; this one "
      "is ",
      original.toString(), " of layout ", original.layout());
  if (device_ < 0) device_ = original.device().index();
  if (place_ == c10::kCPU) {
    zeros_ += original.nbytes();
    TORCH_CHECK_NOT_IMPLEMENTED(
        zeros_ <= kMostZeros, "the simulated device: with numbers off, ",
        log_.operator_name(),
        " has no Meta kernel that says what sizes its results have, and its "
        "operands are too large to compute it on zeros (",
        zeros_, " bytes, at most ", kMostZeros,
        "). Choose a form of the model that avoids it, or run with numbers.");
  }
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const void* address = write ? storage->mutable_data() : storage->data();
  c10::Storage alias_storage;
  if (Entry* sibling = Find(storage)) {
    alias_storage = sibling->alias.storage();
  } else {
    SeeStorage(address, storage->nbytes());
    alias_storage = MakeStorage(storage->nbytes());
  }
  CheckMapped(*impl, address, log_.operator_name());
  log_.Add(*impl, write);
  at::Tensor alias = MakeTensor(std::move(alias_storage),
                                (place_ == c10::kMeta ? kMetaKeys : kCpuKeys) |
                                    (impl->key_set() & kValueKeys),
                                *impl);
  if (impl->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  const size_t entry = entries_.size();
  index_.emplace(impl, entry);
  index_.emplace(alias.unsafeGetTensorImpl(), entry);
  // The first entry of a storage stays; any of them would do.
  index_.emplace(storage, entry);
  index_.emplace(alias.storage().unsafeGetStorageImpl(), entry);
  entries_.push_back({original, alias, write});
  return alias;
}

ShapeAliasSet::Entry* ShapeAliasSet::Find(const void* key) {
  auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void ShapeAliasSet::TakeOver() {
  for (Entry& entry : entries_) {
    if (!entry.write) continue;
    const at::TensorImpl& alias = *entry.alias.unsafeGetTensorImpl();
    at::TensorImpl* original = entry.original.unsafeGetTensorImpl();
    const size_t wanted = alias.unsafe_storage().nbytes();
    const bool grown = wanted > original->unsafe_storage().nbytes();
    if (!grown && alias.sizes() == original->sizes() &&
        alias.strides() == original->strides() &&
        alias.storage_offset() == original->storage_offset()) {
      continue;
    }
    if (grown) {
      GrowStorage(entry.original, wanted);  // the real sizes follow
      SeeStorage(entry.original.storage().data(),
                 entry.original.storage().nbytes());
    }
    original->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                    alias.storage_offset());
    log_.Add(*original, true);
  }
}

at::Tensor ShapeAliasSet::GiveBack(const at::Tensor& result) {
  if (!result.defined() || result.device().type() != place_) return result;
  if (Entry* entry = Find(result.unsafeGetTensorImpl())) {
    return entry->original;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.layout() == c10::kStrided && result.has_storage(),
      "the simulated device has no room for a result of layout ",
      result.layout());
  if (Entry* entry = Find(result.storage().unsafeGetStorageImpl())) {
    const auto keys = (entry->original.key_set() - kValueKeys) |
                      (result.key_set() & kValueKeys);
    return MakeTensor(entry->original.storage(), keys,
                      *result.unsafeGetTensorImpl());
  }
  at::Tensor tensor = at::_ops::empty_strided::redispatch(
      kCudaOnly, result.sym_sizes(), result.sym_strides(), result.scalar_type(),
      c10::kStrided, c10::Device(c10::kCUDA, device_), std::nullopt);
  if (tensor.numel() != 0) {
    SeeStorage(tensor.storage().data(), tensor.storage().nbytes());
    log_.Add(*tensor.unsafeGetTensorImpl(), true);
  }
  if (result.is_conj()) tensor._set_conj(true);
  if (result.is_neg()) tensor._set_neg(true);
  return tensor;
}

}  // namespace cudasim::bridge
