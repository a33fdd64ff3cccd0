// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/foreign_call.h"

#include <algorithm>
#include <string>

#include "python_shim/torch_bridge/entry_point.h"
#include "python_shim/torch_bridge/evictable_copy.h"
#include "python_shim/torch_bridge/operator_pin.h"

namespace {

bool SomeMayLeave(const stratalloc::AccessList& accesses) {
  return std::any_of(accesses.data(), accesses.data() + accesses.size(),
                     [](const stratalloc_access& access) {
                       return stratalloc_may_leave(access.address) != 0;
                     });
}

}  // namespace

struct stratalloc_torch_call {
  stratalloc_torch_call(const char* what,
                        const stratalloc::AccessList& accesses, bool copies,
                        int kind)
      : name(what),
        pin(name.c_str(), accesses),
        copying(copies && SomeMayLeave(accesses)) {
    if (kind == STRATALLOC_TORCH_CALL_FUNCTION) pin.BecomeCall();
  }

  const std::string name;  // messages of the core name it until it is left
  stratalloc::OperatorPin pin;
  const stratalloc::CopyingEvictable copying;
};

int stratalloc_torch_call_enter(const char* name, const void* const* tensors,
                                int count, int written, int copies, int kind,
                                stratalloc_torch_call** out, char* message,
                                int bytes) {
  *out = nullptr;
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    uint64_t lo, hi;
    if (!stratalloc::AnythingEvictable(&lo, &hi)) return;
    stratalloc::AccessList accesses(lo, hi);
    for (int i = 0; i < count; ++i) {
      accesses.AddTensor(*static_cast<const c10::TensorImpl*>(tensors[i]),
                         i < written, /*whole_storage=*/false);
    }
    if (kind == STRATALLOC_TORCH_CALL_FUNCTION && !accesses.SawCuda()) return;
    *out = new stratalloc_torch_call(name, accesses, copies != 0, kind);
  });
}

void stratalloc_torch_call_leave(stratalloc_torch_call* call) { delete call; }
