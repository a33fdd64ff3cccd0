// SPDX-License-Identifier: Apache-2.0
//
// priority_times.h: when the compute engine of a device is busy, by the
// priorities of streams. A kernel of an urgent stream does not wait for less
// urgent ones: thread blocks end soon, and the device then starts its blocks
// first. Kernels that were placed before keep their times. What the urgent one
// took from them is added behind them, where later kernels of their priority
// find the engine busy.
//
// Thread-safety: none; the simulator's lock guards every object.
// Lifetime: plain values.
// Errors: none.
// Invariants: the work of all kernels together is the length of the times at
// which the engine is busy, whatever the priorities.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_PRIORITY_TIMES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_PRIORITY_TIMES_H_

#include <map>

#include "tests/simulator/cudasim/busy_times.h"

namespace cudasim {

class PriorityTimes {
 public:
  // The first moment >= `earliest` with `length` to spare among kernels that
  // are as urgent or more, taken. A smaller number is more urgent, as in CUDA.
  BusyTimes::Placed Place(int priority, VirtualNs earliest, VirtualNs length);
  // Nothing will be asked for before `now` any more.
  void Forget(VirtualNs now);
  void Clear() { levels_.clear(); }

 private:
  VirtualNs FirstFit(int priority, VirtualNs earliest, VirtualNs length) const;

  std::map<int, BusyTimes> levels_;  // by priority
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_PRIORITY_TIMES_H_
