// SPDX-License-Identifier: Apache-2.0
//
// Operators of libraries that are loaded after the bridge: torchvision's,
// compiled extensions'.
//
// A listener notes every operator that is defined from now on. Their kernels
// are registered a moment later, so the bridge looks at what was noted when the
// next bridged operator or copy runs, and at every further install(): an
// operator with compiled kernels for both CUDA and the CPU gets a
// BridgedKernel. Operators written in Python are left alone, they consist of
// others; one whose only kernel is CUDA's is left alone too, and the device
// refuses its launch by name.
//
// Thread-safety: the note is taken under the dispatcher's lock, in whichever
// thread loads the library; BridgeLateOperators() may be called by any thread.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_LATE_OPERATORS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_LATE_OPERATORS_H_

#include <atomic>

namespace cudasim::bridge {

// From now on; a second call does nothing.
void ListenForOperators();

extern std::atomic<bool> late_operators_noted;
// Returns how many it bridged.
int BridgeNotedOperators();

inline void BridgeLateOperators() {
  if (late_operators_noted.load(std::memory_order_relaxed)) {
    BridgeNotedOperators();
  }
}

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_LATE_OPERATORS_H_
