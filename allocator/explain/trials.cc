// SPDX-License-Identifier: Apache-2.0
// DeviceReports::Try and Parts.
#include "allocator/explain/trials.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "allocator/explain/device_reports.h"
#include "allocator/explain/heap_copy.h"
#include "allocator/requests/transactions.h"
#include "allocator/state/settings.h"
#include "allocator/state/workspaces.h"

namespace stratalloc {
namespace {

// Of the size that is found, the last halves are not worth a search each.
constexpr int kHalvings = 12;

// What a refused request is asked of, step by step.
class Again {
 public:
  Again(HeapCopy& copy, const HeapCopy::Wish& wish,
        const RefusedRequest& refused, HandleTable& table)
      : copy_(copy), wish_(wish), refused_(refused) {
    for (const Address operand : refused.operands) {
      const HandleRef handle = table.RefOf(operand);
      if (IsOnDevice(handle.state())) {
        here_.insert(operand);
      } else {
        away_ += handle.bytes();
      }
    }
  }

  HeapCopy::Found Search(Bytes limit) { return Search(wish_.size, limit); }
  // May this leave for it?
  bool IsOperand(Address handle) const { return here_.contains(handle); }

  // The largest that is found between nothing and what was refused.
  Bytes Largest(Bytes limit) {
    if (refused_.is_operator) return 0;
    Bytes served = 0, refused = wish_.size;
    for (int i = 0; i < kHalvings && refused - served > 512; ++i) {
      // Rounded, or it is not the size that a malloc looks for.
      const Bytes size = RoundDown(served + (refused - served) / 2, 512);
      if (size <= served) break;
      if (Search(size, limit).served) {
        served = size;
      } else {
        refused = size;
      }
    }
    return served;
  }

 private:
  HeapCopy::Found Search(Bytes size, Bytes limit) {
    if (refused_.is_operator) return copy_.HoldsBeside(away_, limit);
    HeapCopy::Wish wish = wish_;
    wish.size = Settings::Get().Round(size);
    wish.key.kind = KindOf(wish.size);
    if (wish.unmanaged != 0) {
      wish.unmanaged = Settings::Get().SegmentBytes(wish.size);
    }
    return copy_.Serves(wish, limit);
  }

  HeapCopy& copy_;
  const HeapCopy::Wish wish_;
  const RefusedRequest& refused_;
  std::set<Address> here_;
  Bytes away_ = 0;
};

}  // namespace

struct DeviceReports::TrialCopy {
  std::unique_ptr<HeapCopy> copy;
  std::optional<Again> again;
  Bytes limit = 0;
  bool captures = false;
  std::vector<PoolId> private_pools;
  std::vector<EvictableHandle> leaving;  // in the order of the reclaimer
};

Result<std::vector<Tried>> DeviceReports::Try(const RefusedRequest& refused,
                                              std::span<const Trial> trials,
                                              Reclaimer* reclaimer) {
  const std::vector<Address> workspaces =
      LibraryWorkspaces::Addresses().value_or(std::vector<Address>());
  const Bytes room = reclaimer == nullptr ? 0 : reclaimer->RoomBelow();
  const TierRooms tiers(reclaimer);
  std::vector<Tried> tried;
  for (const Trial& trial : trials) {
    std::unique_ptr<TrialCopy> moment;
    {
      MutexLock lock(p_.mutex);
      STRATALLOC_ASSIGN_OR_RETURN(
          moment, TrialCopyLocked(refused, trial, reclaimer, workspaces));
    }
    tried.push_back(TryOn(*moment, trial, room, tiers));
  }
  return tried;
}

Result<std::unique_ptr<DeviceReports::TrialCopy>>
DeviceReports::TrialCopyLocked(const RefusedRequest& refused,
                               const Trial& trial, const Reclaimer* reclaimer,
                               const std::vector<Address>& workspaces) {
  p_.blocks.Process();
  p_.arrivals.Settle();
  p_.blocks.EmptyBins();
  STRATALLOC_ASSIGN_OR_RETURN(const MemoryInfo card, p_.device.GetMemoryInfo());
  auto moment = std::make_unique<TrialCopy>();
  STRATALLOC_ASSIGN_OR_RETURN(moment->copy, CopyHeapLocked());
  moment->again.emplace(*moment->copy, WishLocked(refused.request), refused,
                        p_.table);
  moment->limit = std::min(p_.limit.Allowed() + trial.more_limit,
                           p_.pages.ours() + card.free + trial.more_card);
  moment->captures = p_.captures.UnderWay();
  for (const auto& [id, pool] : p_.private_pools.all()) {
    moment->private_pools.push_back(id);
  }
  if (reclaimer != nullptr && p_.captures.MayEvict()) {
    moment->leaving = LeavingLocked(*reclaimer, workspaces, trial.leave_too);
  }
  return moment;
}

Tried DeviceReports::TryOn(TrialCopy& moment, const Trial& trial, Bytes room,
                           TierRooms tiers) {
  HeapCopy& copy = *moment.copy;
  Again& again = *moment.again;
  for (const Address block : trial.frees) copy.Free(block);
  Tried tried;
  const auto serves = [&] {
    const HeapCopy::Found found = again.Search(moment.limit);
    tried.missing = found.lacking;
    return tried.served = found.served;
  };
  if (serves()) return tried;
  if (!moment.captures || trial.streams_end) copy.CompletePending();
  if (trial.pools_end) {
    for (const PoolId id : moment.private_pools) copy.Release(id, ~Bytes{0});
  }
  copy.Release(PoolId{}, ~Bytes{0});
  if (serves()) return tried;
  if (!moment.leaving.empty()) {
    Bytes left = room + trial.more_room;
    tiers.host += trial.more_room;
    tiers.disk += trial.more_room;
    for (const EvictableHandle& one : moment.leaving) {
      const Address at = one.handle.address();
      if (again.IsOperand(at)) continue;
      // What has a copy that is good needs no room.
      if (!one.clean && (one.handle.bytes() > left || !tiers.Take(one))) {
        continue;
      }
      if (!one.clean) left -= one.handle.bytes();
      copy.Evict(at);
    }
    if (serves()) return tried;
  }
  if (trial.measure) tried.fits = again.Largest(moment.limit);
  return tried;
}

Result<MemoryParts> DeviceReports::Parts() {
  MutexLock lock(p_.mutex);
  p_.blocks.EmptyBins();
  MemoryParts parts;
  STRATALLOC_ASSIGN_OR_RETURN(parts.card, p_.device.GetMemoryInfo());
  parts.held = FragmentationOf(p_.heap, p_.use_clock.load());
  parts.ours = p_.pages.ours();
  parts.allowed = p_.limit.Allowed();
  parts.limit = p_.limit.Now();
  parts.fraction = p_.limit.fraction();
  parts.capturing = p_.captures.UnderWay();
  return parts;
}

}  // namespace stratalloc
