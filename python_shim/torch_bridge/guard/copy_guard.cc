// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/copy_guard.h"

#include <ATen/ops/copy_native.h>

#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/guard/operator_pin.h"

namespace stratalloc {

at::Tensor& GuardedCopy(at::Tensor& self, const at::Tensor& from,
                        bool non_blocking) try {
  uint64_t lo, hi;
  if (!AnythingEvictable(&lo, &hi)) {
    return at::native::copy_(self, from, non_blocking);
  }
  AccessList accesses(lo, hi);
  accesses.AddTensor(*self.unsafeGetTensorImpl(), /*written=*/true,
                     /*whole_storage=*/false);
  accesses.AddTensor(*from.unsafeGetTensorImpl(), /*written=*/false,
                     /*whole_storage=*/false);
  const OperatorPin pin(kCopyName, accesses);
  return at::native::copy_(self, from, non_blocking);
} catch (const OustedError& error) {
  LeaveOusted(error);
}

}  // namespace stratalloc
