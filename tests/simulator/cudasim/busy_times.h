// SPDX-License-Identifier: Apache-2.0
//
// busy_times.h: when an engine of a device is busy on the virtual clock, and
// where the next operation fits. An operation gets its times when it is
// submitted and keeps them. Gaps are filled: an operation that waits for an
// event does not block one that can go.
//
// Thread-safety: none; the simulator's lock guards every object.
// Lifetime: plain values.
// Errors: none.
// Invariants: the intervals of one object are not empty and do not overlap;
// neighbours of one rate that touch are one interval.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_BUSY_TIMES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_BUSY_TIMES_H_

#include <cstdint>
#include <map>
#include <vector>

namespace cudasim {

using VirtualNs = int64_t;

class BusyTimes {
 public:
  struct Placed {
    VirtualNs start = 0;
    VirtualNs end = 0;
  };
  // The other direction of a bus whose two rates have a limit together.
  struct Shared {
    const BusyTimes* other = nullptr;
    double own_rate = 0;  // of the operation, in 10^9 bytes per second
    double both_rates = 0;
  };

  // The first moment >= `earliest` with `length` to spare, taken.
  VirtualNs Take(VirtualNs earliest, VirtualNs length) {
    return Place(earliest, length, {}).start;
  }
  // Likewise. While the other direction is busy the operation gets what that
  // leaves of both rates, at least a tenth of its own, and takes longer.
  Placed Place(VirtualNs earliest, VirtualNs length, const Shared& shared);
  // The first moment >= `earliest` with `length` to spare.
  VirtualNs FirstFit(VirtualNs earliest, VirtualNs length) const;
  // Removes from `spans` the times at which the engine is busy. Returns how
  // long these are, and when the last interval is over that has one of them.
  struct Displaced {
    VirtualNs length = 0;
    VirtualNs end = 0;
  };
  Displaced Displace(std::vector<Placed>* spans) const;
  // Nothing will be asked for before `now` any more.
  void Forget(VirtualNs now);
  void Clear() { busy_.clear(); }

 private:
  struct Until {
    VirtualNs end = 0;
    double rate = 0;  // with nothing in the other direction; 0: of no bus
  };
  using Intervals = std::map<VirtualNs, Until>;  // by start

  // The first interval that ends behind `at`.
  Intervals::const_iterator EndingAfter(VirtualNs at) const;
  // When work of `length` is over that begins at `start`.
  static VirtualNs EndOf(VirtualNs start, VirtualNs length,
                         const Shared& shared);
  void Add(VirtualNs start, VirtualNs end, double rate);

  Intervals busy_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_BUSY_TIMES_H_
