// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/foreign_call.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/base/evictable_copy.h"
#include "python_shim/torch_bridge/guard/operator_pin.h"

namespace {

bool SomeMayLeave(const stratalloc::AccessList& accesses) {
  return std::any_of(accesses.data(), accesses.data() + accesses.size(),
                     [](const stratalloc::Access& access) {
                       return stratalloc::core::MayLeave(access.address);
                     });
}

// The tangents that forward mode will hand to a function's jvp, of the tensor
// and of what functorch wraps in it. PyTorch has one level of forward mode.
void AddTangents(const c10::TensorImpl* tensor,
                 stratalloc::AccessList* accesses) {
  for (; tensor != nullptr; tensor = stratalloc::InsideFunctorch(*tensor)) {
    const at::Tensor self(
        c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(
            const_cast<c10::TensorImpl*>(tensor)));
    const at::Tensor& tangent = tensor->_fw_grad(0, self);
    if (tangent.defined()) {
      accesses->AddTensor(*tangent.unsafeGetTensorImpl(), /*written=*/false,
                          /*whole_storage=*/false);
    }
  }
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
    const bool forward_mode =
        kind == STRATALLOC_TORCH_CALL_FUNCTION &&
        torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
    for (int i = 0; i < count; ++i) {
      const auto* tensor = static_cast<const c10::TensorImpl*>(tensors[i]);
      accesses.AddTensor(*tensor, i < written, /*whole_storage=*/false);
      if (forward_mode) AddTangents(tensor, &accesses);
    }
    if (kind == STRATALLOC_TORCH_CALL_FUNCTION && !accesses.SawCuda()) return;
    *out = new stratalloc_torch_call(name, accesses, copies != 0, kind);
  });
}

int stratalloc_torch_call_leave(stratalloc_torch_call* call, char* message,
                                int bytes) {
  if (call == nullptr) return 0;
  delete call;
  const std::string ousted = stratalloc::TakeOusted();
  std::snprintf(message, static_cast<size_t>(bytes), "%s", ousted.c_str());
  return ousted.empty() ? 0 : 1;
}
