// SPDX-License-Identifier: Apache-2.0
// Which handles leave. Pure functions over plain numbers, so that a policy
// can be tested, replayed and compared without a device.
//
// The clock counts operators. Layer order is a cycle: least-recently-used
// would evict exactly what is needed next. A handle that was used twice
// predicts its next use one period later; the farthest predicted use leaves
// first. A handle without a period, or one that missed its prediction, is as
// cold as the time since.
#ifndef STRATALLOC_TIERING_POLICY_VICTIMS_H_
#define STRATALLOC_TIERING_POLICY_VICTIMS_H_

#include <cstdint>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

// Uses closer together than this many operators are one use: a layer touches
// its weight and its bias, and both forward and its recomputation, in a burst.
inline constexpr std::uint32_t kBurstOperators = 16;

struct Candidate {
  std::uint64_t id = 0;  // the caller's
  Bytes bytes = 0;
  std::uint32_t last_use = 0;      // clock values; 0 = never
  std::uint32_t previous_use = 0;  // of an earlier burst
  bool clean = false;              // leaving costs no copy
};

// Operators until the predicted next use, or since a missed one: the larger,
// the colder.
std::uint32_t Coldness(const Candidate& candidate, std::uint32_t now);

// Victims with at least `target` bytes in all (or every candidate), coldest
// first; among equals the clean ones first. Deterministic.
std::vector<Candidate> ChooseVictims(std::vector<Candidate> candidates,
                                     std::uint32_t now, Bytes target);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_VICTIMS_H_
