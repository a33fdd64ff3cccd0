// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/victims.h"

#include <algorithm>

namespace stratalloc {

namespace {

// Uses on two threads may share ticks, so that a later one is written down as
// a little earlier: then no time lies between them. Half of all differences
// would be too many to call negative: 2^31 ticks are less than an hour.
std::uint32_t Ticks(std::uint32_t from, std::uint32_t to) {
  constexpr std::uint32_t kMostBehind = 1u << 24;
  return from - to <= kMostBehind ? 0 : to - from;
}

}  // namespace

std::uint32_t Coldness(const Candidate& candidate, std::uint32_t now) {
  const std::uint32_t since = Ticks(candidate.last_use, now);
  if (candidate.previous_use == 0) return since;
  const std::uint32_t period =
      Ticks(candidate.previous_use, candidate.last_use);
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
