// SPDX-License-Identifier: Apache-2.0
// Engine: on which tier bytes may lie (allocator/values/tier_rule.h), and what
// goes down from the host by hand.
#include <algorithm>
#include <utility>

#include "tiering/engine/engine.h"
#include "tiering/engine/overlaps.h"

namespace stratalloc {

namespace {

// A rule is for whole blocks, whatever part of them was named.
std::vector<AddressRange> BlocksOf(DeviceAllocator& device,
                                   std::span<const AddressRange> ranges) {
  std::vector<AddressRange> blocks;
  for (const AddressRange& range : ranges) {
    BlockView block;
    if (!device.FindLive(range.address, &block)) continue;
    blocks.push_back({block.address, block.bytes});
  }
  return blocks;
}

}  // namespace

Status Engine::SetRule(DeviceAllocator& device,
                       std::span<const AddressRange> ranges, TierRule rule) {
  if (switched_off()) return {};
  STRATALLOC_RETURN_IF_ERROR(CheckOn());
  TieredDevice& state = *StateOf(device);
  // Nothing leaves it, so nothing lies where it may not.
  if (ranges.empty() || !state.CheckTakesPart()) return {};
  MutexLock arbiter(state.arbiter);
  FinishLeavingLocked(state);
  lower_.CollectDropped(device);
  if (!rule.host && !lower_.disk_allowed()) rule.disk = false;
  if (!rule.disk && lower_.options().host_budget == 0) rule.host = false;
  const std::vector<AddressRange> blocks = BlocksOf(device, ranges);
  if (blocks.empty()) return {};
  std::vector<std::pair<Address, TierRule>> before;
  const auto give = [&] {
    for (const AddressRange& range : ranges) {
      if (const auto had = device.SetRule(range.address, rule)) {
        before.emplace_back(range.address, *had);
      }
    }
  };
  // Backwards: two ranges may be of one block, which had another rule first.
  const auto take_back = [&] {
    for (; !before.empty(); before.pop_back()) {
      (void)device.SetRule(before.back().first, before.back().second);
    }
  };
  std::vector<HandleRef> handles;
  std::vector<Address> keep;
  for (const EvictableHandle& one : device.Evictable()) {
    if (one.lives && one.state != HandleState::kPoisoned &&
        Overlaps(one.handle, blocks)) {
      handles.push_back(one.handle);
      keep.push_back(one.handle.address());
    }
  }
  Status status;
  give();
  // What makes room goes by the rules that hold if this fails, so that then all
  // lies where it may. What of these it sends down comes back in another round;
  // what is here stays here.
  for (auto back = MustReturnLocked(device, handles); status && !back.empty();
       back = MustReturnLocked(device, handles)) {
    take_back();
    status = RestoreBatchLocked(state, back, Room::kEvict, keep, false);
    if (status) status = device.DrainArrivals();
    if (status) give();
  }
  FinishLeavingLocked(state);
  if (status) status = GoDownLocked(state, handles);
  if (status) return {};
  take_back();
  return Fail(status.error().code, "the rule is not followed and not kept: " +
                                       status.error().message);
}

// It may lie nowhere, or its only copy not where it is, and there is no way up
// but over the device.
std::vector<HandleRef> Engine::MustReturnLocked(
    DeviceAllocator& device, const std::vector<HandleRef>& handles) {
  std::vector<HandleRef> back;
  for (HandleRef handle : handles) {
    const HandleState at = handle.state();
    if (!IsAway(at) || at == HandleState::kPoisoned) continue;
    const TierRule rule = device.RuleOf(handle);
    if (!rule.disk && (!rule.host || at == HandleState::kDisk)) {
      back.push_back(handle);
    }
  }
  return back;
}

// All or none: no copy is given up before each has its chunk.
Status Engine::GoDownLocked(TieredDevice& state,
                            const std::vector<HandleRef>& handles) {
  DeviceAllocator& device = *state.allocator;
  std::vector<LowerCopy*> beside;
  Status status = device.DrainArrivals();
  lower_.TryDiskAgain();
  for (HandleRef handle : handles) {
    if (!status) break;
    if (handle.state() != HandleState::kHost || device.RuleOf(handle).host) {
      continue;
    }
    beside.push_back(lower_.Find(device, handle.address()));
    status = lower_.WriteBeside(*beside.back());
  }
  if (status) status = GiveUpForbiddenLocked(state, handles);
  if (!status) {
    for (LowerCopy* copy : beside) lower_.TakeBeside(*copy);
  }
  return status;
}

Status Engine::GiveUpForbiddenLocked(TieredDevice& state,
                                     const std::vector<HandleRef>& handles) {
  DeviceAllocator& device = *state.allocator;
  for (HandleRef handle : handles) {
    LowerCopy* const copy = lower_.Find(device, handle.address());
    if (copy == nullptr) continue;
    const TierRule rule = device.RuleOf(handle);
    if (copy->host && !rule.host) {
      STRATALLOC_RETURN_IF_ERROR(lower_.GiveUpHost(*copy));
    }
    if (copy->disk && !rule.disk) lower_.GiveUpChunkOf(*copy);
  }
  return {};
}

Bytes Engine::LowerLocked(TieredDevice& state,
                          std::span<const AddressRange> ranges,
                          const std::vector<HandleRef>& handles) {
  Bytes lowered = 0;
  lower_.TryDiskAgain();
  for (auto& [address, copy] : lower_.all(*state.allocator)) {
    if (!copy.host || !IsAway(copy.handle.state()) ||
        !Overlaps(copy.handle, ranges) ||
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
