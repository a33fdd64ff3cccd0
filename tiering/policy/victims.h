// SPDX-License-Identifier: Apache-2.0
// Which handles leave. Pure functions over plain numbers, so that a policy
// can be tested, replayed and compared without a device.
//
// The clock counts operators. Layer order is a cycle: least-recently-used
// would evict exactly what is needed next. What was used before predicts its
// next use from its last four intervals, in which a pattern may have one, two
// or three of them: a forward alone has one, forward and backward alternate
// between two, with an optimizer there are three. The farthest predicted use
// leaves first. What was used once, or missed its prediction, is as cold as the
// time since.
//
// Cold for good is another question: what is not used for longer than it ever
// was between two uses (an idle second model, a head that only evaluation
// calls). Only that leaves before anybody is refused.
#ifndef STRATALLOC_TIERING_POLICY_VICTIMS_H_
#define STRATALLOC_TIERING_POLICY_VICTIMS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/values/handle_use.h"

namespace stratalloc {

// Uses closer together than this many operators are one use: a layer touches
// its weight and its bias, and both forward and its recomputation, in a burst.
inline constexpr std::uint32_t kBurstOperators = 16;
// In ticks of the clock.
inline constexpr std::uint32_t kBurstTicks = kBurstOperators * HandleUse::kTick;

struct Candidate {
  std::uint64_t id = 0;  // the caller's
  Bytes bytes = 0;
  std::uint32_t last_use = 0;  // a clock value
  // Between earlier uses, the newest first; 0 = not known.
  std::array<std::uint32_t, 4> intervals{};
  bool clean = false;  // leaving costs no copy
  // Uses of other handles that are expected before its next one. Known of all
  // candidates or of none.
  std::optional<std::uint64_t> distance = {};
};

// Operators from the last use to the predicted next one; 0 = no prediction.
std::uint32_t PredictedInterval(const Candidate& candidate);

// Operators until the predicted next use, or since a missed one: the larger,
// the colder.
std::uint32_t Coldness(const Candidate& candidate, std::uint32_t now);

// Operators from the last use after which the candidate is cold for good: more
// than the longest of its intervals. 0: too little is known, it never is.
std::uint32_t ColdAfter(const Candidate& candidate);
bool IsCold(const Candidate& candidate, std::uint32_t now);

// Victims with at least `target` bytes in all (or every candidate), coldest
// first, by their distance where it is known; among equals the clean ones
// first. Deterministic.
std::vector<Candidate> ChooseVictims(std::vector<Candidate> candidates,
                                     std::uint32_t now, Bytes target);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_VICTIMS_H_
