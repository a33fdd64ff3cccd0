// SPDX-License-Identifier: Apache-2.0
#include "allocator/explain/staying.h"

#include <algorithm>
#include <numeric>

#include "allocator/explain/device_reports.h"
#include "allocator/explain/stay_reasons.h"
#include "allocator/heap/fragmentation.h"
#include "allocator/state/workspaces.h"

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
    "kept by a rule",
    "pinned by a graph",
    "in use by a collective",
    "handed out as pointers",
    "in use by an operator",
    "activations",
    "evictable"};

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
  const StayReasons reasons(p_, workspaces);
  Staying staying;
  for (const auto& [base, segment] : p_.heap.segments()) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state != BlockState::kAllocated) continue;
      if (!segment->evictable()) {
        staying.of(reasons.Of(*b)) += b->size;
        continue;
      }
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes bytes) {
        if (IsAway(handle.entry().state.load())) return;
        staying.of(reasons.Of(handle)) += bytes;
      });
    }
  }
  return staying;
}

Fragmentation DeviceReports::Fragments() {
  MutexLock lock(p_.mutex);
  p_.blocks.Process();
  p_.blocks.EmptyBins();
  return FragmentationOf(p_.heap, p_.use_clock.load());
}

Bytes DeviceReports::StayingBytes() {
  MutexLock lock(p_.mutex);
  p_.blocks.EmptyBins();
  Bytes stays = 0;
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (segment->evictable()) {
      ForEachHandleOf(*segment, [&](HandleRef handle) {
        p_.mutex.AssertHeld();
        if ((handle.entry().pins.load() != 0 ||
             p_.blocks.RuleOf(handle).nowhere()) &&
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
  const std::string unallocated =
      FragmentationOf(p_.heap, p_.use_clock.load()).ToText();
  std::string text = staying.ToText();
  if (staying.total() == 0 && !unallocated.empty()) text.clear();
  if (!text.empty() && !unallocated.empty()) text += ", ";
  return (why.empty() ? "" : why + "; ") + "on the device: " + text +
         unallocated + ", in " + FormatBytes(reserved) + " of reserved memory";
}

}  // namespace stratalloc
