// SPDX-License-Identifier: Apache-2.0
// Listener to refused requests for memory, called before the exception is
// thrown. c_api/refusals.h has what Python gets of one.
//
// Thread-safety: every function, any thread.
// Locks: none is held during a call: the listener may take the GIL.
// Errors: none.
#ifndef STRATALLOC_PYTHON_SHIM_REFUSALS_REFUSALS_H_
#define STRATALLOC_PYTHON_SHIM_REFUSALS_REFUSALS_H_

#include <atomic>
#include <string>

#include "allocator/explain/trials.h"

namespace stratalloc {

class Refusals {
 public:
  // Returns what the exception says behind `message`; "" for nothing. `name`:
  // of an operator, else nullptr.
  using Listener = std::string (*)(int device, const RefusedRequest& refused,
                                   const char* name,
                                   const std::string& message);

  // nullptr: none. A call that has begun may still be under way then.
  static void Hear(Listener listener) {
    listener_.store(listener, std::memory_order_release);
  }
  static bool AnyoneHears() {
    return listener_.load(std::memory_order_acquire) != nullptr;
  }
  // The listener's answer; "" without one.
  static std::string Tell(int device, const RefusedRequest& refused,
                          const char* name, const std::string& message) {
    const Listener listener = listener_.load(std::memory_order_acquire);
    if (listener == nullptr) return "";
    return listener(device, refused, name, message);
  }

 private:
  static inline constinit std::atomic<Listener> listener_{nullptr};
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_REFUSALS_REFUSALS_H_
