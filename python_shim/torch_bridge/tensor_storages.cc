// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/tensor_storages.h"

#include <limits>

#include "python_shim/torch_bridge/entry_point.h"
#include "python_shim/torch_bridge/tensor_access.h"

int stratalloc_torch_storages(const void* tensor, stratalloc_torch_storage* out,
                              int most, int* count, char* message, int bytes) {
  *count = 0;
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    const auto& impl = *static_cast<const c10::TensorImpl*>(tensor);
    // Whatever lies where: address 0 as well, which is nobody's memory.
    stratalloc::AccessList all(0, std::numeric_limits<uint64_t>::max());
    all.AddTensor(impl, /*written=*/false, /*whole_storage=*/true);
    for (int i = 0; i < all.size(); ++i) {
      const stratalloc::Access& access = all.data()[i];
      if (access.address == 0) {
        *count = -1;
        return;
      }
      if (i < most) out[i] = {access.address, access.bytes, all.DeviceOf(i)};
    }
    *count = impl.is_meta() ? -1 : all.size();
  });
}
