// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_COLLECTIVE_CALL_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_COLLECTIVE_CALL_H_

#include <ATen/core/stack.h>

#include "python_shim/torch_bridge/collectives/collective_operator.h"
#include "python_shim/torch_bridge/collectives/collectives_under_way.h"
#include "python_shim/torch_bridge/guard/tensor_access.h"

namespace stratalloc {

// One call of an operator that communicates, inside the operator's own pin: the
// blocks of its operands stay on the device until what it began is over
// (collectives_under_way.h).
//
//   CollectiveCall call(guarded.name.c_str(), collective, accesses, *stack);
//   previous.callBoxed(...);
//   call.Returned(*stack);
//
// The constructor throws what the core says if the blocks do not fit the device
// together, and then holds nothing; nothing was launched. A call that did not
// return launched nobody knows what: its operands may leave behind everything
// the device has to do.
//
// Without a Work nobody knows when the call is over, unless the caller asked
// for none: then the backend made the current stream wait, which the operator's
// pin has noted. Else the operands, and what the call made, leave behind
// everything the device has to do.
//
// During a capture nothing is done: what a graph uses stays as long as the
// graph, and a Work's event that was captured must not be asked.
//
// On the thread of the call; on its stack.
class CollectiveCall {
 public:
  CollectiveCall(const char* name, const CollectiveOperator& collective,
                 const AccessList& accesses, const torch::jit::Stack& stack);
  ~CollectiveCall();
  CollectiveCall(const CollectiveCall&) = delete;
  CollectiveCall& operator=(const CollectiveCall&) = delete;

  // The results are on the stack.
  void Returned(const torch::jit::Stack& stack);

 private:
  void PinResults(const torch::jit::Stack& stack);

  const char* const name_;
  const CollectiveOperator& collective_;
  const AccessList& accesses_;
  bool captured_ = false;
  bool synchronous_ = false;
  Holder group_;
  CollectivePins pins_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_COLLECTIVE_CALL_H_
