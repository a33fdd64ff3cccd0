// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/late_operators.h"

#include <atomic>
#include <optional>
#include <utility>

#include "python_shim/torch_bridge/guard/guard_kernel.h"
#include "python_shim/torch_bridge/guard/tensor_access.h"

namespace stratalloc {
namespace {

// Dispatcher::registerImpl would take the lock that the dispatcher holds while
// it tells its listeners; OperatorEntry::registerKernel asks for that lock to
// be held, which it is. The entry is private to the handle, so its member
// pointer is taken through an explicit instantiation, where the language does
// not check access.
struct OperatorDefOfHandle {
  friend auto Reveal(OperatorDefOfHandle);
};
template <typename Tag, auto kMember>
struct Grant {
  friend auto Reveal(Tag) { return kMember; }
};
template struct Grant<OperatorDefOfHandle, &c10::OperatorHandle::operatorDef_>;

std::atomic<bool> listening{false};
std::atomic<int> guarded{0};

}  // namespace

void LateOperators::Listen() {
  if (listening.load()) return;
  // Adding a listener replays every operator there is; those are guarded at
  // their own keys.
  static auto* const registration = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<LateOperators>()));
  (void)registration;  // leaked: unregistering at exit helps nobody
  listening.store(true);
}

int LateOperators::Guarded() { return guarded.load(); }

void LateOperators::onOperatorRegistered(const c10::OperatorHandle& op) {
  if (!listening.load()) return;
  OperatorSignature signature(op.schema());
  if (!signature.HasTensors()) return;
  // A library that chooses backends itself keeps its own kernel there.
  if (op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) return;
  auto kernel = std::make_unique<LateGuardKernel>(op, std::move(signature));
  auto& entry = (op.*Reveal(OperatorDefOfHandle{}))->op;
  entry.registerKernel(
      c10::Dispatcher::singleton(), c10::DispatchKey::BackendSelect,
      c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)),
      std::nullopt, nullptr, kGuardMark);
  guarded.fetch_add(1);
}

void LateOperators::onOperatorDeregistered(const c10::OperatorHandle&) {
  // The entry owns our kernel and dies with it.
}

}  // namespace stratalloc
