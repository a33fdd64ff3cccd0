// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/alias_parts.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/resize_ops.h>

#include <utility>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"

namespace cudasim::bridge {

at::Tensor MakeTensor(c10::Storage storage, c10::DispatchKeySet keys,
                      const at::TensorImpl& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         keys, like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

size_t SpanBytes(const at::TensorImpl& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                          tensor.itemsize());
}

void CheckMapped(const at::TensorImpl& tensor, const void* storage,
                 const char* operator_name) {
  const auto& device = SimulatedDevice::Get();
  if (!device.InArena(storage)) return;
  const size_t bytes = SpanBytes(tensor);
  const char* first = static_cast<const char*>(storage) +
                      tensor.storage_offset() * tensor.itemsize();
  TORCH_CHECK(bytes == 0 || device.Accessible(first, bytes),
              "CUDA error: an illegal memory access was encountered: operator ",
              operator_name, " uses ", bytes, " bytes at ",
              static_cast<const void*>(first),
              " of the simulated device, which are not (all) mapped");
}

void GrowStorage(const at::Tensor& original, size_t bytes) {
  const auto itemsize = static_cast<int64_t>(original.itemsize());
  original.unsafeGetTensorImpl()->set_storage_offset(0);
  const c10::SymInt elements((static_cast<int64_t>(bytes) + itemsize - 1) /
                             itemsize);
  at::_ops::resize_::redispatch(kCudaOnly, original, {&elements, 1},
                                std::nullopt);
}

}  // namespace cudasim::bridge
