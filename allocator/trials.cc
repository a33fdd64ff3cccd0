// SPDX-License-Identifier: Apache-2.0
// DeviceReports::Try and Parts.
#include "allocator/trials.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "allocator/device_reports.h"
#include "allocator/heap_copy.h"
#include "allocator/settings.h"
#include "allocator/transactions.h"
#include "allocator/workspaces.h"

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

Result<std::vector<Tried>> DeviceReports::Try(const RefusedRequest& refused,
                                              std::span<const Trial> trials,
                                              Reclaimer* reclaimer) {
  const std::vector<Address> workspaces =
      LibraryWorkspaces::Addresses().value_or(std::vector<Address>());
  const Bytes room = reclaimer == nullptr ? 0 : reclaimer->RoomBelow();
  std::vector<Tried> tried;
  for (const Trial& trial : trials) {
    MutexLock lock(p_.mutex);  // others go on between two of them
    STRATALLOC_ASSIGN_OR_RETURN(
        const Tried one,
        TryLocked(refused, trial, reclaimer, room, workspaces));
    tried.push_back(one);
  }
  return tried;
}

Result<Tried> DeviceReports::TryLocked(const RefusedRequest& refused,
                                       const Trial& trial,
                                       const Reclaimer* reclaimer, Bytes room,
                                       const std::vector<Address>& workspaces) {
  p_.blocks.Process();
  p_.arrivals.Settle();
  p_.blocks.EmptyBins();
  STRATALLOC_ASSIGN_OR_RETURN(const MemoryInfo card, p_.device.GetMemoryInfo());
  STRATALLOC_ASSIGN_OR_RETURN(const std::unique_ptr<HeapCopy> copy,
                              CopyHeapLocked());
  Again again(*copy, WishLocked(refused.request), refused, p_.table);
  const Bytes limit =
      std::min(p_.limit.Allowed() + trial.more_limit,
               p_.pages.ours() + card.free + trial.more_card);
  const bool captures = p_.captures.UnderWay();
  for (const Address block : trial.frees) copy->Free(block);
  Tried tried;
  const auto serves = [&] {
    const HeapCopy::Found found = again.Search(limit);
    tried.missing = found.lacking;
    return tried.served = found.served;
  };
  if (serves()) return tried;
  if (!captures || trial.streams_end) copy->CompletePending();
  if (trial.pools_end) {
    for (const auto& [id, pool] : p_.private_pools.all()) {
      copy->Release(id, ~Bytes{0});
    }
  }
  copy->Release(PoolId{}, ~Bytes{0});
  if (serves()) return tried;
  if (reclaimer != nullptr && p_.captures.MayEvict()) {
    Bytes left = room + trial.more_room;
    for (const EvictableHandle& one :
         LeavingLocked(*reclaimer, workspaces, trial.leave_too)) {
      const Address at = one.handle.address();
      if (again.IsOperand(at)) continue;
      // What has a copy that is good needs no room.
      if (!one.clean && one.handle.bytes() > left) continue;
      if (!one.clean) left -= one.handle.bytes();
      copy->Evict(at);
    }
    if (serves()) return tried;
  }
  if (trial.measure) tried.fits = again.Largest(limit);
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
