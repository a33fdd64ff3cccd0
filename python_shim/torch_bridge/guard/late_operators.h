// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LATE_OPERATORS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LATE_OPERATORS_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

namespace stratalloc {

// Listens to operator definitions and guards each new operator with tensor
// arguments the moment it is defined, before any call can reach it.
class LateOperators final : public c10::OpRegistrationListener {
 public:
  // Registers with the dispatcher, for the life of the process. Operators that
  // exist already are not touched.
  static void Listen();
  static int Guarded();

  // Called by the dispatcher under its lock.
  void onOperatorRegistered(const c10::OperatorHandle& op) override;
  void onOperatorDeregistered(const c10::OperatorHandle& op) override;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LATE_OPERATORS_H_
