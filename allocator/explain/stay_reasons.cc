// SPDX-License-Identifier: Apache-2.0
#include "allocator/explain/stay_reasons.h"

#include <algorithm>

namespace stratalloc {
namespace {

// Of several the one that lasts longest.
StayReason ReasonOf(const PinCounts& pins) {
  StayReason reason = StayReason::kEvictable;
  for (int i = 0; i < kPinReasons; ++i) {
    const auto pin = static_cast<PinReason>(i);
    if (pins.of(pin) != 0) reason = std::min(reason, StayReasonOf(pin));
  }
  return reason;
}

}  // namespace

StayReasons::StayReasons(DeviceParts& parts,
                         const std::vector<Address>& workspaces)
    : tiering_(parts.options.tiering && !parts.tiering_ended.load()) {
  parts.mutex.AssertHeld();
  parts.captures.Settle();  // what a capture kept that failed leaves
  named_.insert(workspaces.begin(), workspaces.end());
  kept_ = parts.heap.HandlesUnder(workspaces);
  of_graphs_ = parts.private_pools.Operands();
  std::map<const HandleUse*, TierRule> rules;
  for (const auto& [base, segment] : parts.heap.segments()) {
    if (!segment->region->evictable) continue;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (!IsLive(b->state)) continue;
      if (b->rule.some()) {
        ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
          rules[&handle.use()].Add(b->rule);
        });
      }
      if (b->state != BlockState::kAllocated || !b->pins.any()) continue;
      const StayReason reason = ReasonOf(b->pins);
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
        StayReason& lasts =
            pinned_.try_emplace(&handle.use(), reason).first->second;
        lasts = std::min(lasts, reason);
      });
    }
  }
  for (const auto& [use, rule] : rules) {
    if (rule.nowhere()) nowhere_.insert(use);
  }
}

StayReason StayReasons::Of(HandleRef handle) const {
  if (!tiering_) return StayReason::kTieringOff;
  const HandleUse& use = handle.use();
  if (kept_.contains(handle.address())) return StayReason::kWorkspace;
  StayReason lasts = StayReason::kEvictable;
  if (use.pins.load() != 0) lasts = StayReason::kOperator;
  if (of_graphs_.contains(&use)) lasts = StayReason::kGraph;
  if (nowhere_.contains(&use)) lasts = std::min(lasts, StayReason::kRule);
  const auto found = pinned_.find(&use);
  return found == pinned_.end() ? lasts : std::min(lasts, found->second);
}

StayReason StayReasons::Of(const Block& block) const {
  if (!tiering_) return StayReason::kTieringOff;
  if (block.segment->pool->key().owner.is_private()) {
    return StayReason::kPrivatePool;
  }
  if (block.raw) return StayReason::kRaw;
  if (named_.contains(block.address)) return StayReason::kWorkspace;
  return block.segment->pool->key().lifetime == LifetimeClass::kStaying
             ? StayReason::kRule
             : StayReason::kActivation;
}

}  // namespace stratalloc
