// SPDX-License-Identifier: Apache-2.0
// Explanation, and DeviceReports::Explain, which makes it.
#include "allocator/explanation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "allocator/device_reports.h"
#include "allocator/fragmentation.h"
#include "allocator/heap_copy.h"
#include "allocator/settings.h"
#include "allocator/stay_reasons.h"
#include "allocator/workspaces.h"

namespace stratalloc {
namespace {

// Handles that stay, and what it takes to make them free.
struct Keeper {
  Bytes live = 0;
  std::vector<Address> blocks;
};

// The fewest bytes per handle first.
std::vector<Keeper> KeepersOf(const BlockHeap& heap) {
  std::map<Address, Keeper> keepers;
  for (const auto& [base, segment] : heap.segments()) {
    const bool may_end =
        !segment->unmanaged && !segment->pool->key().owner.is_private();
    for (const Block* b = segment->first; b != nullptr && may_end;
         b = b->next) {
      if (b->state != BlockState::kAllocated) continue;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
        if (!IsOnDevice(handle.state())) return;
        Keeper& keeper = keepers[handle.address()];
        keeper.live += b->size;
        keeper.blocks.push_back(b->address);
      });
    }
  }
  std::vector<Keeper> sorted;
  for (auto& [address, keeper] : keepers) sorted.push_back(std::move(keeper));
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const Keeper& a, const Keeper& b) { return a.live < b.live; });
  return sorted;
}

// One request, tried on a copy step by step.
class Trial {
 public:
  Trial(HeapCopy& copy, const PoolKey& key, bool classes_meet, Explanation* out)
      : copy_(copy), key_(key), classes_meet_(classes_meet), out_(*out) {}

  bool Fits(Bytes limit, ServedBy by) {
    if (!copy_.Serves(key_, out_.size, limit, classes_meet_, &lacking_)) {
      return false;
    }
    out_.by = by;
    return true;
  }
  Bytes lacking() const { return lacking_; }

  // It was refused with `limit`, of which `most` would be there.
  void FindRemedy(Bytes limit, Bytes most) {
    out_.by = ServedBy::kNothing;
    out_.missing = lacking_;
    Bytes ignored = 0;
    out_.limit_helps = limit + lacking_ <= most &&
                       copy_.Serves(key_, out_.size, limit + lacking_,
                                    classes_meet_, &ignored);
    FindFrees(limit);
  }

 private:
  void FindFrees(Bytes limit) {
    std::vector<BlockView> frees;
    Bytes bytes = 0;
    for (const Keeper& keeper : KeepersOf(copy_.heap())) {
      for (const Address address : keeper.blocks) {
        const Block* block = copy_.heap().Find(address);
        // It may be part of what was freed before it.
        if (block == nullptr || block->state != BlockState::kAllocated)
          continue;
        frees.push_back({block->address, block->size, block->requested,
                         block->state, block->charge});
        bytes += block->size;
        copy_.Free(address);
      }
      // To end that much is no better than to allocate less.
      if (bytes >= out_.missing) return;
      Bytes ignored = 0;
      if (copy_.Serves(key_, out_.size, limit, classes_meet_, &ignored)) {
        out_.frees = std::move(frees);
        return;
      }
    }
  }

  HeapCopy& copy_;
  const PoolKey key_;
  const bool classes_meet_;
  Explanation& out_;
  Bytes lacking_ = 0;
};

}  // namespace

const char* ServedByName(ServedBy by) {
  static constexpr const char* kNames[] = {"now", "waiting", "eviction",
                                           "headroom", "nothing"};
  return kNames[static_cast<std::size_t>(by)];
}

Bytes Explanation::freed_bytes() const {
  Bytes bytes = 0;
  for (const BlockView& block : frees) bytes += block.bytes;
  return bytes;
}

std::string Explanation::Remedy(Bytes below) const {
  if (by == ServedBy::kEviction || by == ServedBy::kHeadroom) {
    if (room_needed() <= below) return "";
    return "Room for " + FormatBytes(room_needed() - below) +
           " more on the host or on disk would have served it: raise "
           "host_budget or disk_budget.";
  }
  if (by != ServedBy::kNothing || missing == 0) return "";
  if (!frees.empty()) {
    return FormatBytes(freed_bytes()) + " in " + std::to_string(frees.size()) +
           (frees.size() == 1 ? " block" : " blocks") +
           " of handles that are free otherwise would have served it, if it "
           "were freed: stratalloc.explain() names the owners.";
  }
  return FormatBytes(missing) + " more would have served it" +
         (limit_helps ? ": the card has them, raise gpu_limit or the memory "
                        "fraction."
                      : ".");
}

Result<Explanation> DeviceReports::Explain(const MallocRequest& request,
                                           bool may_evict) {
  if (request.size == 0 || request.size >= kMaxRequest) {
    return Fail(ErrorCode::kInvalidArgument,
                "no device has a block of " + std::to_string(request.size) +
                    " bytes; ask for more than 0 and less than " +
                    FormatBytes(kMaxRequest));
  }
  const std::vector<Address> workspaces =
      LibraryWorkspaces::Addresses().value_or(std::vector<Address>());
  MutexLock lock(p_.mutex);
  return ExplainLocked(request, may_evict, workspaces);
}

Result<Explanation> DeviceReports::ExplainLocked(
    const MallocRequest& request, bool may_evict,
    const std::vector<Address>& workspaces) {
  Explanation out;
  out.requested = request.size;
  out.size = Settings::Get().Round(request.size);
  p_.blocks.Process();
  p_.arrivals.Settle();
  p_.blocks.EmptyBins();
  const bool tiering = p_.options.tiering;
  const PoolKey key{
      .stream = request.stream,
      .lifetime = tiering ? request.lifetime : LifetimeClass::kTransient,
      .kind = KindOf(out.size)};
  STRATALLOC_ASSIGN_OR_RETURN(const MemoryInfo card, p_.device.GetMemoryInfo());
  const Bytes there = p_.pages.ours() + card.free;
  const Bytes limit = std::min(p_.limit.Now(), there);
  // Only who evicts takes the headroom.
  const Bytes most = may_evict ? std::min(p_.limit.Allowed(), there) : limit;
  STRATALLOC_ASSIGN_OR_RETURN(
      const std::unique_ptr<HeapCopy> copy,
      HeapCopy::Make(p_.heap, p_.table, p_.pages.used_bytes(),
                     [&](const Pool& pool) {
                       p_.mutex.AssertHeld();
                       return !p_.private_pools.IsInUse(pool.key().owner);
                     }));
  out.certain = p_.device.has_virtual_memory() && !p_.captures.UnderWay() &&
                p_.unmanaged.SourceOf(key) == nullptr;
  Trial trial(*copy, key, tiering, &out);
  if (trial.Fits(limit, ServedBy::kNow)) return out;
  copy->CompletePending();
  if (trial.Fits(limit, ServedBy::kWaiting)) return out;
  if (may_evict) {
    out.leaves = trial.lacking();
    EvictAll(workspaces, *copy, &out);
  }
  if (trial.Fits(limit, ServedBy::kEviction) ||
      trial.Fits(most, ServedBy::kHeadroom)) {
    out.certain = false;  // the tiers below say
    return out;
  }
  out.leaves = 0;
  trial.FindRemedy(most, there);
  for (BlockView& block : out.frees) {
    block.charge = FrameAccounts::Get().Resolved(block.charge);
  }
  return out;
}

void DeviceReports::EvictAll(const std::vector<Address>& workspaces,
                             HeapCopy& copy, Explanation* out) {
  if (!p_.captures.MayEvict()) return;
  const StayReasons reasons(p_, workspaces);
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (!segment->evictable()) continue;
    std::map<Address, HandleRef> live;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (!IsLive(b->state)) continue;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
        if (IsOnDevice(handle.state()) &&
            reasons.Of(handle) == StayReason::kEvictable) {
          live.emplace(handle.address(), handle);
        }
      });
    }
    for (const auto& [address, handle] : live) {
      const HandleEntry& entry = handle.entry();
      copy.Evict(address);
      out->may_leave += handle.bytes();
      if (entry.has_copy.load() && !entry.dirty.load()) {
        out->clean += handle.bytes();
      }
    }
  }
}

}  // namespace stratalloc
