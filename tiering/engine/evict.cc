// SPDX-License-Identifier: Apache-2.0
// Engine: who leaves, until enough has, for a restore too. How handles leave
// and return is eviction.h's and restoration.h's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "allocator/base/host_time.h"
#include "allocator/state/pin_poll.h"
#include "allocator/state/workspaces.h"
#include "tiering/engine/engine.h"
#include "tiering/engine/eviction.h"
#include "tiering/engine/restoration.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

// Ticks until a relief that found nothing cold looks again, if nothing it saw
// will be cold sooner: milliseconds, where a look takes some 20 us.
constexpr std::uint32_t kLookAgainAfter = 1 << 12;

// What an eviction may choose from: candidate i is handles[i].
struct Victims {
  std::vector<HandleRef> handles;
  std::vector<Candidate> candidates;
  // Ticks until something that is not cold yet will be.
  std::uint32_t next_cold = kLookAgainAfter;
};

Candidate CandidateOf(const EvictableHandle& one, std::size_t id) {
  return {.id = id,
          .bytes = one.handle.bytes(),
          .last_use = one.last_use,
          .intervals = one.intervals,
          .clean = one.clean};
}

Victims LookAtCandidates(DeviceAllocator& device,
                         const std::vector<Address>& workspaces,
                         const std::set<Address>& not_these, bool only_cold,
                         std::uint32_t now) {
  Victims choice;
  const auto all = device.Candidates(workspaces);
  NoteChose(all.size());
  for (const EvictableHandle& one : all) {
    if (not_these.contains(one.handle.address())) continue;
    const Candidate candidate = CandidateOf(one, choice.handles.size());
    if (only_cold && !IsCold(candidate, now)) {
      if (const std::uint32_t after = ColdAfter(candidate); after != 0) {
        choice.next_cold =
            std::min(choice.next_cold, candidate.last_use + after + 1 - now);
      }
      continue;
    }
    choice.handles.push_back(one.handle);
    choice.candidates.push_back(candidate);
  }
  return choice;
}

}  // namespace

void Engine::Order(std::uint32_t now,
                   std::vector<EvictableHandle>* leaving) const {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < leaving->size(); ++i) {
    candidates.push_back(CandidateOf((*leaving)[i], i));
  }
  NoteChose(candidates.size());
  std::vector<EvictableHandle> sorted;
  for (const Candidate& one :
       ChooseVictims(std::move(candidates), now, ~Bytes{0})) {
    sorted.push_back((*leaving)[one.id]);
  }
  *leaving = std::move(sorted);
}

Bytes Engine::EvictVictimsLocked(TieredDevice& state, Bytes target,
                                 const std::vector<Address>& keep, Whom whom) {
  DeviceAllocator& device = *state.allocator;
  std::set<Address> not_these(keep.begin(), keep.end());
  const auto workspaces = LibraryWorkspaces::Addresses();
  if (!workspaces) {
    state.refusal = Eviction::kTablesBusy;
    return 0;
  }
  PinPoll::Run();
  std::string why;
  Bytes freed = 0;
  bool drained = false;
  state.refusal.clear();
  while (freed < target) {
    const std::uint32_t now = device.use_clock().load();
    Victims choice = LookAtCandidates(device, *workspaces, not_these,
                                      whom == Whom::kCold, now);
    const std::vector<Candidate> chosen =
        ChooseVictims(std::move(choice.candidates), now, target - freed);
    if (whom == Whom::kCold && chosen.empty()) {
      // Asked again when something may have turned cold.
      state.relief_from = now + choice.next_cold;
      break;
    }
    if (chosen.empty() && !drained) {
      // What has just arrived can leave again once its copy is complete.
      drained = true;
      if (device.DrainArrivals()) continue;
    }
    // Addresses that data_ptr() gave away stay as long as nobody lacks room.
    if (chosen.empty() && whom == Whom::kAnybody &&
        device.DropOldPointers(0, 0)) {
      continue;
    }
    if (chosen.empty()) {
      state.refusal = why;
      break;
    }
    std::vector<HandleRef> victims;
    for (const Candidate& candidate : chosen) {
      if (victims.size() == Eviction::kMost) break;
      victims.push_back(choice.handles[candidate.id]);
    }
    // A batch that came to nothing because of pins is no reason to stop; one
    // that a tier refused is.
    state.refusal.clear();
    const Bytes batch = EvictBatchLocked(state, victims);
    if (!state.refusal.empty()) why = state.refusal;
    freed += batch;
    // Whoever could not leave now will not in the next round either.
    for (HandleRef victim : victims) not_these.insert(victim.address());
    if (batch == 0 && !state.refusal.empty()) break;
  }
  return freed;
}

Bytes Engine::EvictBatchLocked(TieredDevice& state,
                               const std::vector<HandleRef>& victims,
                               Below below) {
  // The caller may have waited for the arbiter while tiering was switched
  // off.
  if (Status on = CheckOn(); !on) {
    state.refusal = on.error().message;
    return 0;
  }
  Eviction eviction({state, lower_, counters_, all_}, below);
  const Bytes freed = eviction.Run(victims);
  if (eviction.began()) learning_.store(true, std::memory_order_relaxed);
  return freed;
}

Status Engine::RestoreBatchLocked(TieredDevice& state,
                                  const std::vector<HandleRef>& handles,
                                  Room room, const std::vector<Address>& keep,
                                  bool planned) {
  std::function<Bytes(Bytes)> make_room;
  if (room == Room::kEvict) {
    make_room = [&](Bytes target) {
      arbiter_.AssertHeld();
      return EvictVictimsLocked(state, target, keep, Whom::kAnybody);
    };
  }
  return Restoration({state, lower_, counters_, std::move(make_room), planned})
      .Run(handles);
}

}  // namespace stratalloc
