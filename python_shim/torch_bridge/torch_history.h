// SPDX-License-Identifier: Apache-2.0
// What the rest of the bridge must do for history: gather the context of a
// call before the core takes a lock, and hand it over for the call's length.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_TORCH_HISTORY_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_TORCH_HISTORY_H_

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>

namespace stratalloc {

// native's rule: a context is gathered where the level asked for is reached.
// NEVER while history is off: one relaxed load on the hot path.
extern std::atomic<c10::CachingDeviceAllocator::RecordContext>
    recorded_contexts;

// Set-up at init(): what was asked for before there was a device.
void ApplyHistory();

class ContextOfCall {
 public:
  explicit ContextOfCall(c10::CachingDeviceAllocator::RecordContext level)
      : gathered_(recorded_contexts.load(std::memory_order_relaxed) >= level) {
    if (C10_UNLIKELY(gathered_)) Gather();
  }
  ~ContextOfCall() {
    if (C10_UNLIKELY(gathered_)) Drop();
  }
  ContextOfCall(const ContextOfCall&) = delete;
  ContextOfCall& operator=(const ContextOfCall&) = delete;

 private:
  // May take the GIL.
  static void Gather();
  static void Drop();

  const bool gathered_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_TORCH_HISTORY_H_
