// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/victims.h"

#include <algorithm>

namespace stratalloc {

std::uint32_t Coldness(const Candidate& candidate, std::uint32_t now) {
  const std::uint32_t since = now - candidate.last_use;
  if (candidate.previous_use == 0) return since;
  const std::uint32_t period = candidate.last_use - candidate.previous_use;
  return since <= period ? period - since : since - period;
}

std::vector<Candidate> ChooseVictims(std::vector<Candidate> candidates,
                                     std::uint32_t now, Bytes target) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) {
                     const auto ca = Coldness(a, now), cb = Coldness(b, now);
                     if (ca != cb) return ca > cb;
                     return a.clean && !b.clean;
                   });
  Bytes chosen = 0;
  auto end = candidates.begin();
  while (end != candidates.end() && chosen < target) {
    chosen += end->bytes;
    ++end;
  }
  candidates.erase(end, candidates.end());
  return candidates;
}

}  // namespace stratalloc
