// SPDX-License-Identifier: Apache-2.0
//
// What all stand-ins of CUDA tensors are made with: dispatch keys, a tensor
// over a storage, the bytes it spans, and the check that they are mapped.
//
// Thread-safety: pure functions. Fails: CheckMapped throws CUDA's error for an
// illegal access; a CPU kernel would crash on bytes that are not mapped.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ALIAS_PARTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ALIAS_PARTS_H_

#include <ATen/core/Tensor.h>

namespace cudasim::bridge {

// Properties of a value, not of its backend: an alias keeps them.
inline constexpr c10::DispatchKeySet kValueKeys({c10::DispatchKey::Conjugate,
                                                 c10::DispatchKey::Negative});
inline const c10::DispatchKeySet kCpuKeys =
    c10::DispatchKeySet(
        {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView}) |
    c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::CPUBit);
inline const c10::DispatchKeySet kMetaKeys =
    c10::DispatchKeySet(
        {c10::DispatchKey::Meta, c10::DispatchKey::ADInplaceOrView}) |
    c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::MetaBit);

// A tensor over `storage` with the sizes, strides, offset and type of `like`.
at::Tensor MakeTensor(c10::Storage storage, c10::DispatchKeySet keys,
                      const at::TensorImpl& like);

// The bytes between a tensor's first and last element, ends included.
size_t SpanBytes(const at::TensorImpl& tensor);

// `storage`: the device address of the tensor's storage.
void CheckMapped(const at::TensorImpl& tensor, const void* storage,
                 const char* operator_name);

// Makes the storage of a CUDA tensor `bytes` large, through its allocator. Its
// sizes are one dimension over all of it afterwards.
void GrowStorage(const at::Tensor& original, size_t bytes);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ALIAS_PARTS_H_
