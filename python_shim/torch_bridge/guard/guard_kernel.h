// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_GUARD_KERNEL_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_GUARD_KERNEL_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "python_shim/torch_bridge/collectives/collective_operator.h"
#include "python_shim/torch_bridge/guard/list_operator.h"
#include "python_shim/torch_bridge/guard/tensor_access.h"

namespace stratalloc {

// The text by which a kernel of the guard is known in the dispatcher's records.
inline constexpr char kGuardMark[] = "stratalloc op guard";

// One operator at one backend key, and the kernel in front of which its guard
// stands.
struct GuardedOperator {
  std::string name;
  OperatorSignature signature;
  c10::SafeKernelFunction previous;
  ListOperator list;
  CollectiveOperator collective;
};

// The boxed guard: for every operator (typed_guard.h has a faster one for
// some). Owned by the dispatcher; immutable, called from any thread.
class GuardKernel final : public c10::OperatorKernel {
 public:
  explicit GuardKernel(GuardedOperator guarded);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const GuardedOperator guarded_;
};

// The same for an operator defined after the guard was installed. When an
// operator is defined its kernels do not exist yet and there is no event for
// them, so this one sits at BackendSelect: a key every call passes right above
// the backend keys. It hands on to whatever kernel is there by then.
class LateGuardKernel final : public c10::OperatorKernel {
 public:
  LateGuardKernel(const c10::OperatorHandle& op, OperatorSignature signature);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const std::string name_;
  const OperatorSignature signature_;
  const CollectiveOperator collective_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_GUARD_KERNEL_H_
