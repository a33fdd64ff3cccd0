// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/tensor_storages.h"

#include <c10/core/impl/COW.h>

#include <limits>
#include <utility>

#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/guard/tensor_access.h"

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

int stratalloc_torch_exchange(const void* left, const void* right,
                              char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    c10::StorageImpl* const one = static_cast<const c10::TensorImpl*>(left)
                                      ->unsafe_storage()
                                      .unsafeGetStorageImpl();
    c10::StorageImpl* const other = static_cast<const c10::TensorImpl*>(right)
                                        ->unsafe_storage()
                                        .unsafeGetStorageImpl();
    for (const c10::StorageImpl* storage : {one, other}) {
      // The data of a copy that waits for a write is several storages'.
      TORCH_CHECK(!c10::impl::cow::is_cow_data_ptr(storage->data_ptr()),
                  "stratalloc: a lazy copy has no memory of its own");
    }
    TORCH_CHECK(
        one->device() == other->device() && one->nbytes() == other->nbytes(),
        "stratalloc: storages that exchange their memory are of one "
        "device and one size");
    c10::DataPtr memory =
        one->set_data_ptr(std::move(other->mutable_data_ptr()));
    other->set_data_ptr_noswap(std::move(memory));
  });
}
