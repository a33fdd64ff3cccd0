// SPDX-License-Identifier: Apache-2.0
// Explanation, and DeviceReports::Explain, which makes it.
#include "allocator/explain/explanation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "allocator/explain/device_reports.h"
#include "allocator/explain/heap_copy.h"
#include "allocator/explain/stay_reasons.h"
#include "allocator/heap/fragmentation.h"
#include "allocator/requests/transactions.h"
#include "allocator/state/settings.h"
#include "allocator/state/workspaces.h"

namespace stratalloc {
namespace {

// A longer list helps nobody, and each block of it may cost one search of the
// whole copy, while everybody else waits for the device lock.
constexpr std::size_t kMostFrees = 64;

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
class Steps {
 public:
  Steps(HeapCopy& copy, const HeapCopy::Wish& wish, const TierRooms& tiers,
        Explanation* out)
      : copy_(copy), wish_(wish), tiers_(tiers), out_(*out) {}

  bool Fits(Bytes limit, ServedBy by) {
    last_ = Search(limit);
    if (!last_.served) return false;
    out_.by = by;
    out_.block = last_.block;
    return true;
  }
  // Tried between evictions, as Engine::Reclaim does: first of what the tiers
  // below have room for, and only if that does not serve it, of all. `most`:
  // with the headroom, which is taken last.
  bool FitsAfter(const std::vector<EvictableHandle>& leaving, Bytes limit,
                 Bytes most) {
    std::vector<bool> gone(leaving.size());
    bool rules = false;  // of what there is room for, but not where it may lie
    for (const Bytes room : {out_.room_below, ~Bytes{0}}) {
      const bool all = room == ~Bytes{0};
      if (all && rules) out_.room_below = out_.leaves;
      Bytes target = Target(), freed = 0;
      for (std::size_t i = 0; i < leaving.size(); ++i) {
        const Bytes bytes = leaving[i].handle.bytes();
        if (gone[i] || (!leaving[i].clean && out_.leaves + bytes > room)) {
          continue;
        }
        if (!all && !leaving[i].clean && !tiers_.Take(leaving[i])) {
          rules = true;
          continue;
        }
        gone[i] = true;
        out_.leaves += bytes;
        freed += bytes;
        copy_.Evict(leaving[i].handle.address());
        if (freed < target) continue;
        if (Fits(limit, ServedBy::kEviction)) return true;
        target = Target();
        freed = 0;
      }
      if (Fits(limit, ServedBy::kEviction) || Fits(most, ServedBy::kHeadroom)) {
        return true;
      }
    }
    return false;
  }

  // It was refused with `limit`, of which `most` would be there.
  void FindRemedy(Bytes limit, Bytes most) {
    out_.by = ServedBy::kNothing;
    out_.missing = last_.lacking;
    const Bytes more = limit + last_.lacking;
    out_.limit_helps = more <= most && Search(more).served;
    FindFrees(limit);
  }

 private:
  HeapCopy::Found Search(Bytes limit) {
    ++out_.searches;
    return copy_.Serves(wish_, limit);
  }
  // What an eviction is asked for.
  Bytes Target() const {
    return wish_.unmanaged != 0 ? wish_.unmanaged : last_.lacking;
  }
  void FindFrees(Bytes limit) {
    // What waits for other streams is had last, when the rest was released.
    copy_.Release(PoolId{}, ~Bytes{0});
    std::vector<BlockView> frees;
    Bytes bytes = 0;
    for (const Keeper& keeper : KeepersOf(copy_.heap())) {
      const std::size_t before = frees.size();
      for (const Address address : keeper.blocks) {
        const Block* block = copy_.heap().Find(address);
        // It may be part of what was freed before it.
        if (block == nullptr || block->state != BlockState::kAllocated)
          continue;
        if (frees.size() == kMostFrees) return;
        frees.push_back({block->address, block->size, block->requested,
                         block->state, block->charge});
        bytes += block->size;
        copy_.Free(address);
      }
      if (frees.size() == before) continue;  // as it was when it did not serve
      // To end that much is no better than to allocate less.
      if (bytes >= out_.missing) return;
      if (Search(limit).served) {
        out_.frees = std::move(frees);
        return;
      }
    }
  }

  HeapCopy& copy_;
  const HeapCopy::Wish wish_;
  TierRooms tiers_;
  Explanation& out_;
  HeapCopy::Found last_;
};

}  // namespace

const char* DoubtText(Doubt doubt) {
  switch (doubt) {
    case Doubt::kNone:
      return "";
    case Doubt::kDriver:
      return "the driver, which has to have the memory in one piece";
    case Doubt::kSource:
      return "the program's own allocator of this MemPool";
    case Doubt::kTiers:
      return "the host and the disk, which have to take what leaves";
    case Doubt::kCapture:
      return "the CUDA graph that is being captured, while which nothing "
             "leaves";
  }
  return "";
}

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

std::string Explanation::Remedy() const {
  const std::string room = has_room() ? ""
                                      : FormatBytes(leaves - room_below) +
                                            " more on the host or on disk";
  if (by == ServedBy::kEviction || by == ServedBy::kHeadroom) {
    if (room.empty()) return "";
    return "Room for " + room +
           " would have served it: raise host_budget or disk_budget.";
  }
  if (by != ServedBy::kNothing || missing == 0) return "";
  const std::string beside = room.empty() ? "" : ", with room for " + room;
  if (!frees.empty()) {
    return FormatBytes(freed_bytes()) + " in " + std::to_string(frees.size()) +
           (frees.size() == 1 ? " block" : " blocks") +
           " of handles that are free otherwise would have served it, if it "
           "were freed" +
           beside + ".";
  }
  // The line above it, Explanation.text()'s, has what is missing.
  return (limit_helps ? "The card has them: raise gpu_limit or the memory "
                        "fraction"
                      : "Free as much, or ask for less") +
         beside + ".";
}

Result<Explanation> DeviceReports::Explain(const MallocRequest& request,
                                           Reclaimer* reclaimer) {
  if (request.size == 0 || request.size >= kMaxRequest) {
    return Fail(ErrorCode::kInvalidArgument,
                "no device has a block of " + std::to_string(request.size) +
                    " bytes; ask for more than 0 and less than " +
                    FormatBytes(kMaxRequest));
  }
  const std::vector<Address> workspaces =
      LibraryWorkspaces::Addresses().value_or(std::vector<Address>());
  Explanation out;
  if (reclaimer != nullptr) out.room_below = reclaimer->RoomBelow();
  const TierRooms tiers(reclaimer);
  MutexLock lock(p_.mutex);
  return ExplainLocked(request, reclaimer, workspaces, tiers, std::move(out));
}

HeapCopy::Wish DeviceReports::WishLocked(const MallocRequest& request) {
  const Bytes size = Settings::Get().Round(request.size);
  const bool tiering = p_.options.tiering;
  PoolKey key{
      .stream = request.stream,
      .lifetime = tiering ? request.lifetime : LifetimeClass::kTransient,
      .kind = KindOf(size)};
  if (p_.routes.MayRoute()) key.owner = p_.captures.RouteOf(request.stream);
  if (key.owner.is_private()) key.lifetime = LifetimeClass::kTransient;
  return {key, size,
          p_.unmanaged.SourceOf(key) == nullptr
              ? 0
              : Settings::Get().SegmentBytes(size),
          tiering};
}

Doubt DeviceReports::DoubtLocked(const PoolKey& key) {
  if (p_.captures.UnderWay()) return Doubt::kCapture;
  if (p_.unmanaged.SourceOf(key) == nullptr) return Doubt::kNone;
  return p_.unmanaged.IsCudaMalloc(key) ? Doubt::kDriver : Doubt::kSource;
}

Result<std::unique_ptr<HeapCopy>> DeviceReports::CopyHeapLocked() {
  std::set<PoolId> in_use, lending, unsplit;
  for (const auto& [id, pool] : p_.private_pools.all()) {
    if (p_.private_pools.IsInUse(id)) in_use.insert(id);
    if (p_.private_pools.IsUnsplit(id)) unsplit.insert(id);
    if (pool.use_on_oom) lending.insert(id);
  }
  return HeapCopy::Make(
      p_.heap, p_.table, p_.pages.used_bytes(),
      {.may_move = [in_use](PoolId id) { return !in_use.contains(id); },
       .lends = [lending](PoolId id) { return lending.contains(id); },
       .unsplit = [unsplit](PoolId id) { return unsplit.contains(id); }});
}

Result<Explanation> DeviceReports::ExplainLocked(
    const MallocRequest& request, const Reclaimer* reclaimer,
    const std::vector<Address>& workspaces, const TierRooms& tiers,
    Explanation out) {
  p_.blocks.Process();
  p_.arrivals.Settle();
  p_.blocks.EmptyBins();
  const HeapCopy::Wish wish = WishLocked(request);
  out.requested = request.size;
  out.size = wish.size;
  out.doubt = DoubtLocked(wish.key);
  STRATALLOC_ASSIGN_OR_RETURN(const MemoryInfo card, p_.device.GetMemoryInfo());
  const Bytes there = p_.pages.ours() + card.free;
  const Bytes limit = std::min(p_.limit.Now(), there);
  STRATALLOC_ASSIGN_OR_RETURN(const std::unique_ptr<HeapCopy> copy,
                              CopyHeapLocked());
  Steps steps(*copy, wish, tiers, &out);
  if (steps.Fits(limit, ServedBy::kNow)) return out;
  const PrivatePool* const own = p_.private_pools.Find(wish.key.owner);
  if (wish.key.owner.is_private() && own != nullptr && !own->addresses_kept) {
    copy->Release(wish.key.owner, wish.size);
    if (steps.Fits(limit, ServedBy::kNow)) return out;
  }
  // By then the ladder has released what was free.
  copy->Release(PoolId{}, wish.size);
  copy->CompletePending();
  if (steps.Fits(limit, ServedBy::kWaiting)) return out;
  Bytes most = limit;
  if (reclaimer != nullptr && p_.captures.MayEvict()) {
    // Only who evicts takes the headroom.
    most = std::min(p_.limit.Allowed(), there);
    const auto leaving = LeavingLocked(*reclaimer, workspaces);
    for (const EvictableHandle& one : leaving) {
      out.may_leave += one.handle.bytes();
    }
    if (steps.FitsAfter(leaving, limit, most)) {
      if (out.doubt == Doubt::kNone) out.doubt = Doubt::kTiers;
      return out;
    }
  }
  steps.FindRemedy(most, there);
  for (BlockView& block : out.frees) {
    block.charge = FrameAccounts::Get().Resolved(block.charge);
  }
  return out;
}

std::vector<EvictableHandle> DeviceReports::LeavingLocked(
    const Reclaimer& reclaimer, const std::vector<Address>& workspaces,
    std::uint32_t also) {
  std::map<Address, EvictableHandle> leaving;
  const StayReasons reasons(p_, workspaces);
  // A pointer keeps its block only until somebody lacks room (block_pin.h).
  const std::uint32_t may = also | Trial::Bit(StayReason::kEvictable) |
                            Trial::Bit(StayReason::kPointer);
  const auto may_leave = [&reasons, may](const HandleRef& handle) {
    return (may & Trial::Bit(reasons.Of(handle))) != 0;
  };
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (!segment->evictable()) continue;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (!IsLive(b->state)) continue;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
        p_.mutex.AssertHeld();
        if (!IsOnDevice(handle.state()) || !may_leave(handle)) return;
        const HandleEntry& entry = handle.entry();
        leaving.try_emplace(handle.address(),
                            EvictableHandle{.handle = handle,
                                            .state = handle.state(),
                                            .lives = true,
                                            .clean = entry.has_copy.load() &&
                                                     !entry.dirty.load(),
                                            .has_copy = entry.has_copy.load(),
                                            .last_use = entry.last_use.load(),
                                            .intervals = entry.Intervals(),
                                            .rule = p_.blocks.RuleOf(handle)});
      });
    }
  }
  std::vector<EvictableHandle> sorted;
  for (const auto& [address, one] : leaving) sorted.push_back(one);
  reclaimer.Order(p_.use_clock.load(), &sorted);
  return sorted;
}

}  // namespace stratalloc
