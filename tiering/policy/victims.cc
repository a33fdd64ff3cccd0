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

// The same interval, as far as two rounds of a program are ever the same.
bool Alike(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t larger = std::max(a, b), smaller = std::min(a, b);
  return larger - smaller <= larger / 8 + kBurstTicks;
}

}  // namespace

std::uint32_t PredictedInterval(const Candidate& candidate) {
  const auto& intervals = candidate.intervals;
  // The shortest pattern of which the newest interval is a repetition: what
  // followed the earlier one follows this one.
  for (std::size_t length = 1; length < intervals.size(); ++length) {
    if (intervals[length] == 0) break;
    if (Alike(intervals[0], intervals[length])) return intervals[length - 1];
  }
  // No repetition yet. Two are known of a forward and its backward: the longer
  // one follows the shorter and the other way round.
  return intervals[1] != 0 && intervals[2] == 0 ? intervals[1] : intervals[0];
}

std::uint32_t Coldness(const Candidate& candidate, std::uint32_t now) {
  const std::uint32_t since = Ticks(candidate.last_use, now);
  const std::uint32_t period = PredictedInterval(candidate);
  if (period == 0) return since;
  return since <= period ? period - since : since - period;
}

std::uint32_t ColdAfter(const Candidate& candidate) {
  const auto& intervals = candidate.intervals;
  if (intervals[1] == 0) return 0;
  return *std::max_element(intervals.begin(), intervals.end());
}

bool IsCold(const Candidate& candidate, std::uint32_t now) {
  const std::uint32_t after = ColdAfter(candidate);
  return after != 0 && Ticks(candidate.last_use, now) > after;
}

std::vector<Candidate> ChooseVictims(std::vector<Candidate> candidates,
                                     std::uint32_t now, Bytes target) {
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [&](const Candidate& a, const Candidate& b) {
        const std::uint64_t ca = a.distance.value_or(Coldness(a, now)),
                            cb = b.distance.value_or(Coldness(b, now));
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
