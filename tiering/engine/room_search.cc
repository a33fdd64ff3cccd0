// SPDX-License-Identifier: Apache-2.0
// Engine: one search for room on a device, from the first look to enough freed
// bytes: what the plan has leave, what is on its way already, and what is used
// latest of the rest.
//
//   Run: { step -> wait for what is on its way -> choose more } until enough
//
// Thread-safety: one thread's, under the arbiter, which its waits let go of.
// Lifetime: of one call. Errors: the device's `refusal` has why not more left.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/host_time.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/state/pin_poll.h"
#include "allocator/state/workspaces.h"
#include "tiering/engine/engine.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

constexpr char kStandsStill[] =
    "what could leave is used by kernels that still run";

// Ticks until a relief that found nothing cold looks again, if nothing it saw
// will be cold sooner: milliseconds, where a look takes some 20 us.
constexpr std::uint32_t kLookAgainAfter = 1 << 13;
// So often one search waits for another device's step.
constexpr int kMostMissed = 8;

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

// Of all that may leave.
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

// Drops what becomes ready no sooner than what waits already: its fence would
// lie behind, on the same streams. More of one stream's pages help no request
// that this stream keeps waiting.
void DropNoSooner(const std::set<std::uint64_t>& waiting, Victims* choice) {
  std::erase_if(choice->candidates, [&](const Candidate& one) {
    const std::uint64_t streams =
        choice->handles[one.id].use().used_streams.load();
    return std::any_of(waiting.begin(), waiting.end(), [&](std::uint64_t all) {
      return (all & ~streams) == 0;
    });
  });
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

class Engine::RoomSearch {
 public:
  RoomSearch(Engine& engine, TieredDevice& state,
             const std::vector<Address>& keep, Evictable which,
             bool* stood_still)
      : engine_(engine),
        state_(state),
        leaver_(engine.LeaverOf(state)),
        cold_(which == Evictable::kCold),
        stood_still_(stood_still),
        before_(leaver_.freed()),
        keep_(keep.begin(), keep.end()),
        not_these_(keep_) {
    tally_->searched = true;
  }
  ~RoomSearch() { tally_->searched = false; }
  RoomSearch(const RoomSearch&) = delete;
  RoomSearch& operator=(const RoomSearch&) = delete;

  // REQUIRES: the device's arbiter.
  Bytes Run(Bytes target);

 private:
  // One round. False: the search is over.
  bool GoOn(Bytes target) REQUIRES(state_.arbiter);
  // Nothing more can be chosen, and so many bytes are on their way.
  bool AwaitRest(Bytes pending) REQUIRES(state_.arbiter);
  void Await() REQUIRES(state_.arbiter) {
    stands_still_ = !engine_.AwaitLocked(state_);
  }
  void Choose(const std::vector<HandleRef>& victims) REQUIRES(state_.arbiter);
  // Those that leave next. False, with a refusal, if that is not known.
  bool FindVictims(Bytes target, std::vector<HandleRef>* victims);
  // There are none. True if now there may be.
  bool MakeVictims();
  // A tier refused what was chosen. True if another device's copies may give
  // room, whose arbiter was not free and has been waited for.
  bool AwaitMissed();
  Bytes freed() const { return leaver_.freed() - before_; }

  Engine& engine_;
  TieredDevice& state_;
  Leaver& leaver_;
  const bool cold_;
  bool* const stood_still_;
  const Bytes before_;
  const std::set<Address> keep_;
  std::set<Address> not_these_;
  const std::shared_ptr<LeaveTally> tally_ = std::make_shared<LeaveTally>();
  std::string why_;
  bool chose_ = false;
  Bytes at_choice_ = 0;  // what had come free when some were chosen last
  bool stands_still_ = false;
  bool drained_ = false;
  int missed_ = 0;
};

Bytes Engine::EvictVictimsLocked(TieredDevice& state, Bytes target,
                                 const std::vector<Address>& keep,
                                 Evictable which, bool* stood_still) {
  return RoomSearch(*this, state, keep, which, stood_still).Run(target);
}

Bytes Engine::RoomSearch::Run(Bytes target) {
  state_.arbiter.AssertHeld();
  PinPoll::Run();
  state_.refusal.clear();
  if (!cold_) engine_.LeaveByPlanLocked(state_);
  while (GoOn(target)) {
  }
  state_.refusal = why_;
  return freed();
}

bool Engine::RoomSearch::GoOn(Bytes target) {
  state_.arbiter.AssertHeld();
  // Tiering may have been switched off during a wait.
  if (Status on = engine_.CheckOn(); !on) {
    why_ = on.error().message;
    return false;
  }
  leaver_.Step();
  if (!state_.refusal.empty()) why_ = std::exchange(state_.refusal, "");
  if (freed() >= target) return false;
  // The caller has something else to try first.
  if (stands_still_ && stood_still_ != nullptr && !*stood_still_) {
    *stood_still_ = true;
    why_ = kStandsStill;
    return false;
  }
  const Bytes pending = leaver_.Pending();
  const Bytes expected = stands_still_ ? 0 : pending;
  if (expected > 0 && freed() + expected >= target) {
    Await();
    return true;
  }
  // A batch that came to nothing because of pins is no reason to stop; one that
  // a tier refused is.
  const bool refused = chose_ && pending == 0 && leaver_.freed() == at_choice_;
  if (refused && !why_.empty()) return AwaitMissed();
  std::vector<HandleRef> victims;
  if (!FindVictims(target - freed() - expected, &victims)) return false;
  if (victims.empty()) return AwaitRest(pending);
  Choose(victims);
  return true;
}

void Engine::RoomSearch::Choose(const std::vector<HandleRef>& victims) {
  state_.arbiter.AssertHeld();
  at_choice_ = leaver_.freed();
  chose_ = true;
  stands_still_ = false;
  engine_.ChooseLocked(state_, victims, Below::kEither, tally_);
  // What could not leave now will not in the next round either.
  for (HandleRef victim : victims) not_these_.insert(victim.address());
}

bool Engine::RoomSearch::AwaitRest(Bytes pending) {
  state_.arbiter.AssertHeld();
  if (pending == 0) return !cold_ && MakeVictims();
  if (!stands_still_) {
    Await();
    return true;
  }
  // Other threads may have to get on first.
  if (LookAtOthers().any || !engine_.AwaitSomeLocked(state_)) {
    why_ = kStandsStill;
    return false;
  }
  stands_still_ = false;
  return true;
}

bool Engine::RoomSearch::FindVictims(Bytes target,
                                     std::vector<HandleRef>* victims) {
  const auto workspaces = LibraryWorkspaces::Addresses();
  if (!workspaces) {
    why_ = Eviction::kTablesBusy;
    return false;
  }
  DeviceAllocator& device = *state_.allocator;
  const std::uint32_t now = device.use_clock().load();
  Victims choice =
      LookAtCandidates(device, *workspaces, not_these_, cold_, now);
  if (stands_still_) DropNoSooner(leaver_.Streams(), &choice);
  Planner& planner = engine_.PlannerOf(state_);
  if (planner.HasFuture() && !cold_) {
    for (Candidate& one : choice.candidates) {
      one.distance = planner.Distance(choice.handles[one.id].address());
    }
  }
  const std::vector<Candidate> chosen =
      ChooseVictims(std::move(choice.candidates), now, target);
  // Asked again when something may have turned cold.
  if (cold_ && chosen.empty()) state_.relief_from = now + choice.next_cold;
  for (const Candidate& candidate : chosen) {
    if (victims->size() == Eviction::kMost) break;
    victims->push_back(choice.handles[candidate.id]);
  }
  return true;
}

bool Engine::RoomSearch::AwaitMissed() {
  Mutex* const missed = engine_.lower_.TakeMissed(*state_.allocator);
  if (missed == nullptr || ++missed_ > kMostMissed) return false;
  engine_.AwaitArbiterLocked(state_, *missed);
  not_these_ = keep_;
  chose_ = false;
  return true;
}

bool Engine::RoomSearch::MakeVictims() {
  DeviceAllocator& device = *state_.allocator;
  // What has just arrived can leave again once its copy is complete.
  if (!std::exchange(drained_, true) && device.DrainArrivals()) return true;
  // Addresses that data_ptr() handed out stay as long as nothing lacks room.
  return device.DropOldPointers(0, 0);
}

}  // namespace stratalloc
