// SPDX-License-Identifier: Apache-2.0
#include "allocator/staying.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "allocator/device_reports.h"
#include "allocator/workspaces.h"

namespace stratalloc {
namespace {

constexpr std::array<const char*, kStayReasons> kNames = {
    "where tiering is off",
    "in private pools",
    "raw memory",
    "library workspaces",
    "shared with another process",
    "exported to other libraries",
    "pinned by the program",
    "pinned by a graph",
    "in use by a collective",
    "handed out as pointers",
    "in use by an operator",
    "activations",
    "evictable"};

// Of several the one that lasts longest.
StayReason ReasonOf(const PinCounts& pins) {
  StayReason reason = StayReason::kEvictable;
  for (int i = 0; i < kPinReasons; ++i) {
    const auto pin = static_cast<PinReason>(i);
    if (pins.of(pin) != 0) reason = std::min(reason, StayReasonOf(pin));
  }
  return reason;
}

// What a heap has on the device beside what is allocated, exact: the sum of
// both is what is reserved.
class Unallocated {
 public:
  // The caller holds the device lock.
  explicit Unallocated(const BlockHeap& heap) {
    for (const auto& [base, segment] : heap.segments()) Add(*segment);
  }

  // "1.00 MiB free beside them in their handles"; "" if there is none.
  std::string ToText() const {
    std::string text;
    const auto add = [&](Bytes bytes, const char* what) {
      if (bytes == 0) return;
      if (!text.empty()) text += ", ";
      text += FormatBytes(bytes) + " " + what;
    };
    add(beside_, "free beside them in their handles");
    add(beside_private_, "free beside blocks of private pools");
    add(pending_, "freed while other streams use it");
    add(private_, "free in private pools");
    add(cached_, "cached");
    return text;
  }

 private:
  static bool IsHere(HandleRef handle) {
    const HandleState state = handle.entry().state.load();
    return state != HandleState::kUnmapped && !IsAway(state);
  }

  void Add(const Segment& segment) {
    std::map<Address, Bytes> live;  // by handle
    for (const Block* b = segment.first; b != nullptr; b = b->next) {
      if (!IsLive(b->state)) continue;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes bytes) {
        if (!IsHere(handle)) return;
        live[handle.address()] += bytes;
        if (b->state == BlockState::kPending) pending_ += bytes;
      });
    }
    // A block keeps all of each handle that it touches.
    const bool of_private = segment.pool->key().owner.is_private();
    ForEachHandleOf(segment, [&](HandleRef handle) {
      if (!IsHere(handle)) return;
      const auto found = live.find(handle.address());
      if (found != live.end()) {
        (of_private ? beside_private_ : beside_) +=
            handle.bytes() - found->second;
      } else if (of_private) {
        private_ += handle.bytes();
      } else {
        cached_ += handle.bytes();
      }
    });
  }

  Bytes beside_ = 0, beside_private_ = 0, pending_ = 0, private_ = 0,
        cached_ = 0;
};

}  // namespace

StayReason StayReasonOf(PinReason reason) {
  constexpr std::array<StayReason, kPinReasons> kReasons = {
      StayReason::kShared, StayReason::kExported, StayReason::kProgram,
      StayReason::kCollective, StayReason::kPointer};
  return kReasons[static_cast<std::size_t>(reason)];
}

const char* PinReasonName(PinReason reason) {
  return StayReasonName(StayReasonOf(reason));
}

const char* StayReasonName(StayReason reason) {
  return kNames[static_cast<std::size_t>(reason)];
}

Bytes Staying::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
}

std::string Staying::ToText() const {
  std::array<StayReason, kStayReasons> order;
  for (int i = 0; i < kStayReasons; ++i) order[i] = StayReason(i);
  std::stable_sort(order.begin(), order.end() - 1,
                   [&](auto a, auto b) { return of(a) > of(b); });
  std::string text;
  for (const StayReason reason : order) {
    if (of(reason) == 0) continue;
    if (!text.empty()) text += ", ";
    text += FormatBytes(of(reason)) + " " + StayReasonName(reason);
  }
  return text.empty() ? "nothing" : text;
}

Staying DeviceReports::Stays() {
  // Without an answer what is torch's counts as what else it is.
  const std::vector<Address> workspaces =
      LibraryWorkspaces::Addresses().value_or(std::vector<Address>());
  MutexLock lock(p_.mutex);
  return StayingLocked(workspaces);
}

Staying DeviceReports::StayingLocked(const std::vector<Address>& workspaces) {
  p_.captures.Settle();  // what a capture kept that failed leaves
  const std::set<Address> named(workspaces.begin(), workspaces.end());
  const std::set<Address> kept = p_.heap.HandlesUnder(workspaces);
  const std::set<const HandleUse*> of_graphs = p_.private_pools.Operands();
  std::map<const HandleUse*, StayReason> pinned;
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (!segment->region->evictable) continue;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state != BlockState::kAllocated || !b->pins.any()) continue;
      const StayReason reason = ReasonOf(b->pins);
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
        StayReason& lasts =
            pinned.try_emplace(&handle.use(), reason).first->second;
        lasts = std::min(lasts, reason);
      });
    }
  }
  const auto of_handle = [&](HandleRef handle) {
    const HandleUse& use = handle.use();
    if (kept.contains(handle.address())) return StayReason::kWorkspace;
    StayReason lasts = StayReason::kEvictable;
    if (use.pins.load() != 0) lasts = StayReason::kOperator;
    if (of_graphs.contains(&use)) lasts = StayReason::kGraph;
    const auto found = pinned.find(&use);
    return found == pinned.end() ? lasts : std::min(lasts, found->second);
  };
  const auto of_block = [&](const Block& block) {
    if (!p_.options.tiering) return StayReason::kTieringOff;
    if (block.segment->pool->key().owner.is_private()) {
      return StayReason::kPrivatePool;
    }
    if (block.raw) return StayReason::kRaw;
    if (named.contains(block.address)) return StayReason::kWorkspace;
    return StayReason::kActivation;
  };
  Staying staying;
  for (const auto& [base, segment] : p_.heap.segments()) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state != BlockState::kAllocated) continue;
      if (!segment->evictable()) {
        staying.of(of_block(*b)) += b->size;
        continue;
      }
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes bytes) {
        if (IsAway(handle.entry().state.load())) return;
        staying.of(of_handle(handle)) += bytes;
      });
    }
  }
  return staying;
}

Bytes DeviceReports::StayingBytes() {
  MutexLock lock(p_.mutex);
  p_.blocks.EmptyBins();
  Bytes stays = 0;
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (segment->evictable()) {
      ForEachHandleOf(*segment, [&](HandleRef handle) {
        if (handle.entry().pins.load() != 0 &&
            IsOnDevice(handle.entry().state.load())) {
          stays += handle.bytes();
        }
      });
      continue;
    }
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (IsLive(b->state)) stays += b->size;
    }
  }
  return stays;
}

std::string DeviceReports::WhyNoMore(const std::string& refusal) {
  const std::vector<Address> workspaces =
      LibraryWorkspaces::Addresses().value_or(std::vector<Address>());
  MutexLock lock(p_.mutex);
  const Staying staying = StayingLocked(workspaces);
  std::string why = refusal;
  if (why.empty() && staying.of(StayReason::kEvictable) > 0 &&
      !p_.captures.MayEvict()) {
    why = "nothing leaves while a CUDA graph is captured";
  }
  const auto reserved =
      static_cast<Bytes>(p_.stats.reserved_bytes.stats[0].current);
  const std::string unallocated = Unallocated(p_.heap).ToText();
  std::string text = staying.ToText();
  if (staying.total() == 0 && !unallocated.empty()) text.clear();
  if (!text.empty() && !unallocated.empty()) text += ", ";
  return (why.empty() ? "" : why + "; ") + "on the device: " + text +
         unallocated + ", in " + FormatBytes(reserved) + " of reserved memory";
}

}  // namespace stratalloc
