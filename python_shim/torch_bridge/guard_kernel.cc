// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard_kernel.h"

#include <utility>

#include "python_shim/torch_bridge/operator_pin.h"

namespace stratalloc {
namespace {

std::string FullName(const c10::OperatorHandle& op) {
  return c10::toString(op.operator_name());
}

constexpr c10::DispatchKeySet kBelowBackendSelect(
    c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);

}  // namespace

GuardKernel::GuardKernel(const c10::OperatorHandle& op,
                         OperatorSignature signature,
                         c10::SafeKernelFunction previous)
    : name_(FullName(op)),
      signature_(std::move(signature)),
      previous_(std::move(previous)) {}

void GuardKernel::operator()(const c10::OperatorHandle& op,
                             c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) {
  uint64_t lo, hi;
  if (!AnythingEvictable(&lo, &hi)) {
    previous_.callBoxed(op, keys, stack);
    return;
  }
  AccessList accesses(lo, hi);
  accesses.AddArguments(signature_, *stack);
  const OperatorPin pin(name_.c_str(), accesses);
  previous_.callBoxed(op, keys, stack);
}

LateGuardKernel::LateGuardKernel(const c10::OperatorHandle& op,
                                 OperatorSignature signature)
    : name_(FullName(op)), signature_(std::move(signature)) {}

void LateGuardKernel::operator()(const c10::OperatorHandle& op,
                                 c10::DispatchKeySet keys,
                                 torch::jit::Stack* stack) {
  uint64_t lo, hi;
  if (AnythingEvictable(&lo, &hi)) {
    AccessList accesses(lo, hi);
    accesses.AddArguments(signature_, *stack);
    if (accesses.SawCuda()) {
      const OperatorPin pin(name_.c_str(), accesses);
      op.redispatchBoxed(keys & kBelowBackendSelect, stack);
      return;
    }
  }
  op.redispatchBoxed(keys & kBelowBackendSelect, stack);
}

}  // namespace stratalloc
