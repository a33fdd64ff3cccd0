// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/guard_kernel.h"

#include <utility>

#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/guard/collective_call.h"
#include "python_shim/torch_bridge/guard/list_slices.h"
#include "python_shim/torch_bridge/guard/operator_pin.h"

namespace stratalloc {
namespace {

constexpr c10::DispatchKeySet kBelowBackendSelect(
    c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);

// Calls `kernel` with the operands of a collective held (collective_call.h).
template <typename Kernel>
void Run(const char* name, const CollectiveOperator& collective,
         const AccessList& accesses, torch::jit::Stack* stack,
         const Kernel& kernel) {
  if (C10_LIKELY(!collective.Communicates())) {
    kernel();
    return;
  }
  CollectiveCall call(name, collective, accesses, *stack);
  kernel();
  call.Returned(*stack);
}

}  // namespace

GuardKernel::GuardKernel(GuardedOperator guarded)
    : guarded_(std::move(guarded)) {}

void GuardKernel::operator()(const c10::OperatorHandle& op,
                             c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) try {
  uint64_t lo, hi;
  if (!AnythingEvictable(&lo, &hi)) {
    guarded_.previous.callBoxed(op, keys, stack);
    return;
  }
  AccessList accesses(lo, hi);
  accesses.AddArguments(guarded_.signature, *stack);
  if (C10_UNLIKELY(NeedsSlices(guarded_, accesses)) &&
      RunInSlices(guarded_, lo, hi, keys, stack)) {
    return;
  }
  if (C10_UNLIKELY(guarded_.list.MayRunAgain())) {
    const size_t count = guarded_.signature.argument_count();
    const size_t below = stack->size() - count;
    const torch::jit::Stack again(stack->end() - static_cast<ptrdiff_t>(count),
                                  stack->end());
    try {
      const OperatorPin pin(guarded_.name.c_str(), accesses,
                            OperatorPin::IfRefused::kTriedAgain);
      guarded_.previous.callBoxed(op, keys, stack);
      return;
    } catch (c10::OutOfMemoryError& refused) {
      if (!SlicesMayHelp(guarded_.list, accesses)) {
        TellRefused(guarded_.name.c_str(), accesses, &refused);
        throw;
      }
    }
    // A kernel that threw has taken its arguments or not.
    stack->resize(below);
    stack->insert(stack->end(), again.begin(), again.end());
    if (RunInSlices(guarded_, lo, hi, keys, stack)) return;
  }
  const OperatorPin pin(guarded_.name.c_str(), accesses);
  Run(guarded_.name.c_str(), guarded_.collective, accesses, stack,
      [&] { guarded_.previous.callBoxed(op, keys, stack); });
} catch (const OustedError& error) {
  LeaveOusted(error);
}

LateGuardKernel::LateGuardKernel(const c10::OperatorHandle& op,
                                 OperatorSignature signature)
    : name_(c10::toString(op.operator_name())),
      signature_(std::move(signature)),
      collective_(op.schema()) {}

void LateGuardKernel::operator()(const c10::OperatorHandle& op,
                                 c10::DispatchKeySet keys,
                                 torch::jit::Stack* stack) try {
  uint64_t lo, hi;
  if (AnythingEvictable(&lo, &hi)) {
    AccessList accesses(lo, hi);
    accesses.AddArguments(signature_, *stack);
    if (accesses.SawCuda()) {
      const OperatorPin pin(name_.c_str(), accesses);
      Run(name_.c_str(), collective_, accesses, stack,
          [&] { op.redispatchBoxed(keys & kBelowBackendSelect, stack); });
      return;
    }
  }
  op.redispatchBoxed(keys & kBelowBackendSelect, stack);
} catch (const OustedError& error) {
  LeaveOusted(error);
}

}  // namespace stratalloc
