// SPDX-License-Identifier: Apache-2.0
// Schedule: the pages that leave the device in one cycle, and when.
//
// A gap lies between two uses of a page that follow each other, the cycle's end
// included, or between its last use and its free. A page that leaves after the
// use before a gap needs no device memory in the gap. The schedule chooses as
// many gaps as the capacity requires at every point of the cycle:
//   the longest class of gaps first, each class 1.3 times the next;
//   gaps up to a free before all others, since these bytes never return, but
//   only as gaps of twice their length if the bus has much less to do then;
//   within a class in bit-reversed order of their start, so that they lie
//   spread over the cycle and the bus is busy all the time;
//   at the end gaps that turned out superfluous are dropped, shortest first.
// Adjacent pages with equal gaps are one unit up to `unit` bytes, so that one
// copy, one grant and one unmap serve them all.
//
// Pages without a use in the cycle are not in it: they do not count towards
// the capacity and are expected to be evicted.
//
// Cost: O(n log n) for n uses; 50 000 uses take about 100 ms.
// Thread-safety: a pure function.
// Errors: none. A cycle that cannot fit is scheduled as far as it can, and
// `shortfall` says what is missing.
#ifndef STRATALLOC_TIERING_POLICY_SCHEDULE_H_
#define STRATALLOC_TIERING_POLICY_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct CycleUse {
  Address page = 0;
  Bytes bytes = 0;  // of the page
  bool written = false;
  bool freed = false;  // no use: the page is free up to its next use
};

struct ScheduleLimits {
  Bytes capacity = 0;  // for the pages of the cycle, without transient memory
  // Of it, kept free for pages on their way in, unless all pages fit at once.
  Bytes window = 0;
  Bytes unit = 0;  // most bytes of a unit; 0: a quarter of the window
};

struct Schedule {
  // One for each use of the cycle: 1 if its page leaves after it.
  std::vector<std::uint8_t> leaves;
  // Per cycle: what comes back, and what was written and has to be copied out.
  Bytes bytes_in = 0;
  Bytes bytes_out = 0;
  // Most bytes that are missing at any point although every gap is used.
  Bytes shortfall = 0;
};

// `cycle` in order of use; its last use is followed by its first.
Schedule MakeSchedule(std::span<const CycleUse> cycle,
                      const ScheduleLimits& limits);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_SCHEDULE_H_
