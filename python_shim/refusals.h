// SPDX-License-Identifier: Apache-2.0
// Who is told that memory was refused, before anybody throws:
// c_api_refusals.h says what, and what may be asked meanwhile.
//
// Thread-safety: every function, any thread, no lock held: who hears of it may
// take the GIL. Never fails.
#ifndef STRATALLOC_PYTHON_SHIM_REFUSALS_H_
#define STRATALLOC_PYTHON_SHIM_REFUSALS_H_

#include <atomic>
#include <string>

#include "allocator/explain/trials.h"
#include "python_shim/c_api_refusals.h"

namespace stratalloc {

class Refusals {
 public:
  static void Hear(stratalloc_refusal_listener listener) {
    listener_.store(listener, std::memory_order_release);
  }
  static bool AnyoneHears() {
    return listener_.load(std::memory_order_acquire) != nullptr;
  }
  // What the listener says for the end of `message`; "" if it says nothing.
  // `name`: of an operator.
  static std::string Tell(int device, const RefusedRequest& refused,
                          const char* name, const std::string& message);

 private:
  static std::atomic<stratalloc_refusal_listener> listener_;
};

}  // namespace stratalloc

// What a stratalloc_refusal is of.
struct stratalloc_refused {
  const stratalloc::RefusedRequest& request;
};

#endif  // STRATALLOC_PYTHON_SHIM_REFUSALS_H_
