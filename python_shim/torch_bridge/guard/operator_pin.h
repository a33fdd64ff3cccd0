// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_OPERATOR_PIN_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_OPERATOR_PIN_H_

#include <c10/util/Exception.h>

#include "python_shim/bridge_api/operators.h"
#include "python_shim/torch_bridge/guard/tensor_access.h"

namespace stratalloc {

// Is anything evictable at all? False with tiering off, before CUDA is
// initialised and while another allocator is current: the core publishes its
// address range when our allocator is initialised, which happens only there.
inline bool AnythingEvictable(uint64_t* lo, uint64_t* hi) {
  *hi = __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_ACQUIRE);
  *lo = __atomic_load_n(&stratalloc_evictable_lo, __ATOMIC_RELAXED);
  return *hi != 0;
}

// While it lives, the bytes of `accesses` are resident and stay. The
// constructor throws what the core says (OutOfMemoryError or c10::Error, naming
// layer, tier and cause) and then holds nothing; the destructor runs also when
// the kernel throws. On one thread, properly nested.
//
// An operator whose tensors are on several devices enters once per device, with
// the current stream of each.
class OperatorPin {
 public:
  // What becomes of a refusal for want of memory. kFinal: the program will see
  // it, and who listens is told before it is thrown (bridge_api/operators.h).
  // kTriedAgain: the caller may run the operator otherwise; if it does not, it
  // calls TellRefused with what it caught.
  enum class IfRefused { kFinal, kTriedAgain };
  OperatorPin(const char* name, const AccessList& accesses,
              IfRefused refused = IfRefused::kFinal);
  ~OperatorPin() {
    for (; entered_ > 0; --entered_) core::LeaveOperator();
    for (; calls_ > 0; --calls_) core::LeaveCall();
  }
  // From now on it is a call (operator_thread.h), no operator.
  void BecomeCall() {
    for (; entered_ > 0; --entered_, ++calls_) core::LeaveIntoCall();
  }
  OperatorPin(const OperatorPin&) = delete;
  OperatorPin& operator=(const OperatorPin&) = delete;

 private:
  int entered_ = 0, calls_ = 0;
};

// Of kTriedAgain: the operator will not be run. `error` is what was caught: it
// says more afterwards. A malloc's, which was told of when it was made, stays
// as it is.
void TellRefused(const char* name, const AccessList& accesses,
                 c10::OutOfMemoryError* error);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_OPERATOR_PIN_H_
