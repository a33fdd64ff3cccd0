// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/priority_times.h"

#include <utility>
#include <vector>

namespace cudasim {

VirtualNs PriorityTimes::FirstFit(int priority, VirtualNs earliest,
                                  VirtualNs length) const {
  VirtualNs start = earliest;
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [level, busy] : levels_) {
      if (level > priority) break;
      const VirtualNs fit = busy.FirstFit(start, length);
      moved = moved || fit != start;
      start = fit;
    }
  }
  return start;
}

BusyTimes::Placed PriorityTimes::Place(int priority, VirtualNs earliest,
                                       VirtualNs length) {
  if (length <= 0) return {earliest, earliest};
  const VirtualNs start = FirstFit(priority, earliest, length);
  const BusyTimes::Placed placed = levels_[priority].Place(start, length, {});
  // What is taken from several levels at a time is the most urgent one's: the
  // others had given that time up already.
  std::vector<BusyTimes::Placed> taken = {placed};
  std::vector<std::pair<int, BusyTimes::Placed>> displaced;
  for (auto level = levels_.upper_bound(priority); level != levels_.end();
       ++level) {
    const BusyTimes::Displaced from = level->second.Displace(&taken);
    if (from.length > 0) {
      displaced.emplace_back(
          level->first, BusyTimes::Placed{from.end, from.end + from.length});
    }
  }
  for (const auto& [level, work] : displaced) {
    Place(level, work.start, work.end - work.start);
  }
  return placed;
}

void PriorityTimes::Forget(VirtualNs now) {
  for (auto& [level, busy] : levels_) busy.Forget(now);
}

}  // namespace cudasim
