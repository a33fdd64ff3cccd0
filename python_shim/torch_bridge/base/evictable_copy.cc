// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/base/evictable_copy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/clone_native.h>

#include <cstdint>
#include <optional>

#include "python_shim/bridge_api/operators.h"

namespace stratalloc {

STRATALLOC_FAST_THREAD_LOCAL bool copying_evictable = false;

namespace {

bool MayLeave(const at::Tensor& tensor) {
  // 0 while nothing is evicted anywhere.
  const uint64_t hi =
      __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_ACQUIRE);
  if (hi == 0 || !tensor.has_storage()) return false;
  // Past the accessors, which would copy a copy-on-write tensor.
  const auto at = reinterpret_cast<uint64_t>(tensor.storage()
                                                 .unsafeGetStorageImpl()
                                                 ->_mutable_data_ptr_no_checks()
                                                 .get());
  return at < hi && core::MayLeave(at);
}

at::Tensor ToCopy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                  std::optional<at::Layout> layout,
                  std::optional<at::Device> device,
                  std::optional<bool> pin_memory, bool non_blocking,
                  std::optional<at::MemoryFormat> memory_format) {
  const CopyingEvictable copying(MayLeave(self));
  return at::native::_to_copy(self, dtype, layout, device, pin_memory,
                              non_blocking, memory_format);
}

at::Tensor Clone(const at::Tensor& self,
                 std::optional<at::MemoryFormat> memory_format) {
  const CopyingEvictable copying(MayLeave(self));
  return at::native::clone(self, memory_format);
}

}  // namespace

void AddEvictableCopy(torch::Library& aten, const c10::OperatorName& name) {
  if (name.name == kEvictableCopies[0]) {
    aten.impl("_to_copy", &ToCopy);
  } else {
    aten.impl("clone", &Clone);
  }
}

}  // namespace stratalloc
