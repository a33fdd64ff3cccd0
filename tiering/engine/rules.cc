// SPDX-License-Identifier: Apache-2.0
// Engine: on which tier bytes may lie (allocator/tier_rule.h), and what goes
// down from the host by hand.
#include <algorithm>
#include <utility>

#include "tiering/engine/engine.h"
#include "tiering/engine/overlaps.h"

namespace stratalloc {

Status Engine::SetRule(DeviceAllocator& device,
                       std::span<const AddressRange> ranges, TierRule rule) {
  if (off()) return Fail(ErrorCode::kShutdown, "tiering is off in a fork");
  TieredDevice& state = *StateOf(device);
  // Nothing leaves it, so nothing lies where it may not.
  if (ranges.empty() || !state.CheckTakesPart()) return {};
  MutexLock arbiter(arbiter_);
  lower_.CollectDropped(device);
  if (!rule.host && !lower_.disk_allowed()) rule.disk = false;
  if (!rule.disk && lower_.options().host_budget == 0) rule.host = false;
  std::vector<std::pair<Address, TierRule>> before;
  for (const AddressRange& range : ranges) {
    if (const auto had = device.SetRule(range.address, rule)) {
      before.emplace_back(range.address, *had);
    }
  }
  std::vector<HandleRef> handles;
  for (const EvictableHandle& one : device.Evictable()) {
    if (one.lives && one.state != HandleState::kPoisoned &&
        Overlaps(one.handle, ranges)) {
      handles.push_back(one.handle);
    }
  }
  Status status;
  Result<std::vector<HandleRef>> back = GiveUpForbiddenLocked(device, handles);
  if (back && !back->empty()) {
    std::vector<Address> keep;
    for (HandleRef handle : *back) keep.push_back(handle.address());
    status = RestoreBatchLocked(state, *back, Room::kEvict, keep, false);
    if (status) status = device.DrainArrivals();
    if (status) back = GiveUpForbiddenLocked(device, *back);
  }
  if (!back) status = tl::unexpected(back.error());
  if (status) return {};
  for (const auto& [address, had] : before) (void)device.SetRule(address, had);
  return Fail(status.error().code, "the rule is not followed and not kept: " +
                                       status.error().message);
}

Result<std::vector<HandleRef>> Engine::GiveUpForbiddenLocked(
    DeviceAllocator& device, const std::vector<HandleRef>& handles) {
  std::vector<HandleRef> back;
  for (HandleRef handle : handles) {
    LowerCopy* const copy = lower_.Find(handle.address());
    if (copy == nullptr) continue;
    const TierRule rule = device.RuleOf(handle);
    // It may lie nowhere, or its only copy not where it is and there is no way
    // up but over the device.
    if (IsAway(handle.state()) && !rule.disk && (!rule.host || !copy->host)) {
      back.push_back(handle);
      continue;
    }
    if (copy->host && !rule.host) {
      STRATALLOC_RETURN_IF_ERROR(lower_.GiveUpHost(*copy));
    }
    if (copy->disk && !rule.disk) lower_.GiveUpChunkOf(*copy);
  }
  return back;
}

Bytes Engine::LowerLocked(TieredDevice& state,
                          std::span<const AddressRange> ranges,
                          const std::vector<HandleRef>& handles) {
  Bytes lowered = 0;
  for (auto& [address, copy] : lower_.all()) {
    if (copy.device != state.allocator || !copy.host ||
        !IsAway(copy.handle.state()) || !Overlaps(copy.handle, ranges) ||
        !copy.device->RuleOf(copy.handle).disk) {
      continue;
    }
    if (Status given_up = lower_.GiveUpHost(copy); !given_up) {
      state.refusal = given_up.error().message;
      break;
    }
    // Those have left the device just now, and count once.
    if (std::find(handles.begin(), handles.end(), copy.handle) ==
        handles.end()) {
      lowered += copy.handle.bytes();
    }
  }
  return lowered;
}

}  // namespace stratalloc
