// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/alias.h"

#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "tests/simulator/cudasim/operator_bridge/alias_parts.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"
#include "tests/simulator/cudasim/operator_bridge/sparse_alias.h"

namespace cudasim::bridge {
at::Tensor AliasSet::AliasSparse(const at::Tensor& original, bool write) {
  for (SparseEntry& known : sparse_) {
    if (!known.original.is_same(original)) continue;
    known.write = known.write || write;
    return known.alias;
  }
  if (device_ < 0) device_ = original.device().index();
  at::Tensor alias =
      WithParts(original, c10::Device(c10::kCPU),
                [&](const at::Tensor& part) { return Alias(part, write); });
  sparse_.push_back({original, alias, write});
  return alias;
}

at::Tensor AliasSet::Alias(const at::Tensor& original, bool write) {
  if (IsSparse(original)) return AliasSparse(original, write);
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
      "operator ", log_.operator_name(),
      ": the simulated device computes on "
      "dense and sparse tensors only; this one is ",
      original.toString(), " of layout ", original.layout(),
      original.is_quantized()
          ? ". Dequantize it, or keep the quantized part on the CPU."
          : ". Pad nested tensors (to_padded_tensor on the CPU), or use the "
            "jagged layout, which consists of dense operators.");
  if (device_ < 0) device_ = original.device().index();

  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  // mutable_data() also gives a lazily copied storage its own bytes.
  const void* address = write ? storage->mutable_data() : storage->data();
  c10::Storage alias_storage;
  void* bytes;
  if (Entry* sibling = FindByOriginalStorage(storage)) {
    alias_storage = sibling->alias.storage();
    bytes = sibling->bytes;
  } else {
    const size_t size = storage->nbytes();
    SeeStorage(address, size);
    bytes = SimulatedDevice::Get().HostView(address);
    alias_storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(size),
        c10::DataPtr(bytes, c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
        /*resizable=*/true);
  }
  CheckMapped(*impl, address, log_.operator_name());
  log_.Add(*impl, write);

  at::Tensor alias =
      MakeTensor(std::move(alias_storage),
                 kCpuKeys | (impl->key_set() & kValueKeys), *impl);
  if (impl->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  entries_.push_back({original, alias, bytes, write});
  Index(entries_.size() - 1);
  return alias;
}

AliasSet::Entry* AliasSet::FindIndexed(const void* key) {
  auto found = index_->find(key);
  return found == index_->end() ? nullptr : &entries_[found->second];
}

AliasSet::Entry* AliasSet::Find(const at::TensorImpl* original) {
  if (index_) return FindIndexed(original);
  for (Entry& e : entries_) {
    if (e.original.unsafeGetTensorImpl() == original) return &e;
  }
  return nullptr;
}

AliasSet::Entry* AliasSet::FindByAlias(const at::TensorImpl* alias) {
  if (index_) return FindIndexed(alias);
  for (Entry& e : entries_) {
    if (e.alias.unsafeGetTensorImpl() == alias) return &e;
  }
  return nullptr;
}

AliasSet::Entry* AliasSet::FindByOriginalStorage(
    const c10::StorageImpl* storage) {
  if (index_) return FindIndexed(storage);
  for (Entry& e : entries_) {
    if (e.original.storage().unsafeGetStorageImpl() == storage) return &e;
  }
  return nullptr;
}

AliasSet::Entry* AliasSet::FindByAliasStorage(const c10::StorageImpl* storage) {
  if (index_) return FindIndexed(storage);
  for (Entry& e : entries_) {
    if (e.alias.storage().unsafeGetStorageImpl() == storage) return &e;
  }
  return nullptr;
}

void AliasSet::Index(size_t entry) {
  if (entries_.size() <= kScan) return;
  size_t first = entry;
  if (!index_) {
    index_.emplace();
    first = 0;
  }
  for (size_t i = first; i <= entry; ++i) {
    const Entry& e = entries_[i];
    index_->emplace(e.original.unsafeGetTensorImpl(), i);
    index_->emplace(e.alias.unsafeGetTensorImpl(), i);
    // The first entry of a storage stays; any of them would do.
    index_->emplace(e.original.storage().unsafeGetStorageImpl(), i);
    index_->emplace(e.alias.storage().unsafeGetStorageImpl(), i);
  }
}

void AliasSet::Grow(Entry& entry) {
  const at::Tensor& alias = entry.alias;
  const size_t bytes = alias.storage().nbytes();
  // The real sizes follow.
  GrowStorage(entry.original, bytes);
  // resize_ may have queued a copy of the old bytes; it must not come after
  // ours.
  log_.Begin(entry.original.device().index());
  void* address = entry.original.storage().mutable_data();
  SeeStorage(address, entry.original.storage().nbytes());
  std::memcpy(SimulatedDevice::Get().HostView(address), alias.storage().data(),
              bytes);
}

void AliasSet::TakeOver() {
  for (const SparseEntry& entry : sparse_) {
    if (!entry.write) continue;
    TakeParts(entry.original, entry.alias,
              [&](const at::Tensor& part) { return GiveBack(part); });
  }
  for (Entry& entry : entries_) {
    if (!entry.write) continue;
    const at::TensorImpl& alias = *entry.alias.unsafeGetTensorImpl();
    at::TensorImpl* original = entry.original.unsafeGetTensorImpl();
    const bool moved = alias.unsafe_storage().data() != entry.bytes;
    if (!moved && alias.sizes() == original->sizes() &&
        alias.strides() == original->strides() &&
        alias.storage_offset() == original->storage_offset()) {
      continue;
    }
    if (moved) Grow(entry);
    original->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                    alias.storage_offset());
    log_.Add(*original, true);
  }
}

at::Tensor AliasSet::GiveBack(const at::Tensor& result) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  if (Entry* entry = FindByAlias(result.unsafeGetTensorImpl())) {
    return entry->original;
  }
  if (IsSparse(result)) {
    for (const SparseEntry& entry : sparse_) {
      if (entry.alias.is_same(result)) return entry.original;
    }
    return WithParts(result, c10::Device(c10::kCUDA, device_),
                     [&](const at::Tensor& part) { return GiveBack(part); });
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.layout() == c10::kStrided && result.has_storage(),
      "the simulated device has no room for a result of layout ",
      result.layout());
  if (Entry* entry =
          FindByAliasStorage(result.storage().unsafeGetStorageImpl())) {
    const auto keys = (entry->original.key_set() - kValueKeys) |
                      (result.key_set() & kValueKeys);
    return MakeTensor(entry->original.storage(), keys,
                      *result.unsafeGetTensorImpl());
  }
  return CopyToDevice(result, device_, log_);
}

at::Tensor CopyToDevice(const at::Tensor& cpu, c10::DeviceIndex device,
                        AccessLog& log) {
  at::Tensor tensor = at::_ops::empty_strided::redispatch(
      kCudaOnly, cpu.sym_sizes(), cpu.sym_strides(), cpu.scalar_type(),
      c10::kStrided, c10::Device(c10::kCUDA, device), std::nullopt);
  if (cpu.numel() != 0) {
    void* address = tensor.storage().mutable_data();
    SeeStorage(address, tensor.storage().nbytes());
    std::memcpy(SimulatedDevice::Get().HostView(address), cpu.const_data_ptr(),
                SpanBytes(*cpu.unsafeGetTensorImpl()));
    log.AddFresh(*tensor.unsafeGetTensorImpl());
  }
  if (cpu.is_conj()) tensor._set_conj(true);
  if (cpu.is_neg()) tensor._set_neg(true);
  return tensor;
}

}  // namespace cudasim::bridge
