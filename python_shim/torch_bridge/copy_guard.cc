// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/copy_guard.h"

#include <ATen/ops/copy_native.h>
#include <dlfcn.h>

#include "python_shim/torch_bridge/operator_pin.h"

namespace stratalloc {
namespace {

using CopyKernel = at::Tensor& (*)(at::Tensor&, const at::Tensor&, bool);

constexpr char kOperatorBridge[] = "libcudasim_torch_2_11.so";
constexpr char kBridgeCopy[] = "cudasim_bridge_copy_kernel";

CopyKernel previous_copy = &at::native::copy_;

}  // namespace

void ChoosePreviousCopy() {
  // ctypes loads without RTLD_GLOBAL, so the default scope may not show it.
  void* found = dlsym(RTLD_DEFAULT, kBridgeCopy);
  if (found == nullptr) {
    void* library = dlopen(kOperatorBridge, RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) {
      found = dlsym(library, kBridgeCopy);
      dlclose(library);  // our reference only
    }
  }
  if (found == nullptr) return;
  if (CopyKernel kernel = reinterpret_cast<CopyKernel (*)()>(found)()) {
    previous_copy = kernel;
  }
}

at::Tensor& GuardedCopy(at::Tensor& self, const at::Tensor& from,
                        bool non_blocking) {
  uint64_t lo, hi;
  if (!AnythingEvictable(&lo, &hi)) {
    return previous_copy(self, from, non_blocking);
  }
  AccessList accesses(lo, hi);
  accesses.AddTensor(*self.unsafeGetTensorImpl(), /*written=*/true,
                     /*whole_storage=*/false);
  accesses.AddTensor(*from.unsafeGetTensorImpl(), /*written=*/false,
                     /*whole_storage=*/false);
  const OperatorPin pin(kCopyName, accesses);
  return previous_copy(self, from, non_blocking);
}

}  // namespace stratalloc
