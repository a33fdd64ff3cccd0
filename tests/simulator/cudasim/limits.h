// SPDX-License-Identifier: Apache-2.0
//
// limits.h: cudaDeviceGetLimit and its kind. What a limit is at first follows
// the device's card; a value that is set is kept and answered, and changes
// nothing else: no kernel of ours has a device stack or heap.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_LIMITS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_LIMITS_H_

#include <cstddef>
#include <map>
#include <utility>

#include "tests/simulator/cudasim/cards.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

// The values of cudaLimit and CUlimit.
enum class Limit : int {
  kStackSize = 0,
  kPrintfFifo = 1,
  kMallocHeap = 2,
  kSyncDepth = 3,
  kPendingLaunches = 4,
  kL2FetchGranularity = 5,
  kPersistingL2 = 6,
};

class Limits {
 public:
  // kUnsupportedLimit for one the device does not have.
  Status Get(const Card& card, int device, int limit, size_t* value) const;
  // Out of range is brought into range, as a real device does.
  Status Set(const Card& card, int device, int limit, size_t value);
  void Clear() { set_.clear(); }

 private:
  std::map<std::pair<int, int>, size_t> set_;
};

// For both APIs, on the calling thread's device; takes the simulator's lock.
Status GetLimit(int limit, size_t* value);
Status SetLimit(int limit, size_t value);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_LIMITS_H_
