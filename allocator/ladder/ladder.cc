// SPDX-License-Identifier: Apache-2.0
#include "allocator/ladder/ladder.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

constexpr Bytes kAll = ~Bytes{0};

// A malloc that comes from inside is nested.
class InLadder {
 public:
  InLadder() : thread_(OperatorThread::ThisThread()) {
    thread_.in_ladder = true;
  }
  ~InLadder() { thread_.in_ladder = false; }

 private:
  OperatorThread& thread_;
};

// Everything short of eviction, again and again while that gives memory back.
bool Take(MallocAttempt& attempt, LadderDevice& device) {
  while (true) {
    if (device.Search(attempt, Reach::kLimit)) return true;
    if (attempt.failed) return attempt.EndFailed();
    if (attempt.unmanaged) {
      attempt.lacking = Settings::Get().SegmentBytes(attempt.size);
      if (device.FetchUnmanaged(attempt)) return true;
    }
    // A freed remainder may complete another handle.
    if (device.ReleaseCached(attempt.lacking, PoolId{}) == 0) return false;
  }
}

// The request as the Reclaimer sees it.
class Request final : public MemoryRequest {
 public:
  Request(MallocAttempt& attempt, LadderDevice& device)
      : attempt_(attempt), device_(device) {}

  std::optional<Error> error;  // why what asked cannot go on

  bool Take() override { return stratalloc::Take(attempt_, device_); }
  Bytes Missing() override { return attempt_.lacking; }
  bool IsHopeless() override { return device_.CannotFit(attempt_.size); }
  void Fail(Error why) override { error = std::move(why); }

 private:
  MallocAttempt& attempt_;
  LadderDevice& device_;
};

bool Reclaim(MallocAttempt& attempt, LadderDevice& device) {
  InLadder in_ladder;
  Request request(attempt, device);
  const bool ended = device.Reclaim(request);
  if (!request.error) return ended;
  attempt.answer = tl::unexpected(*std::move(request.error));
  return true;
}

// ---- the rungs, from the lowest on ----------------------------------------

bool Search(MallocAttempt& attempt, LadderDevice& device) {
  return device.SearchFirst(attempt);
}

// As native: whoever can free memory outside our sight is asked before any is
// taken or given back.
bool AskOthers(MallocAttempt& attempt, LadderDevice& device) {
  return device.FreeMemory() && device.Search(attempt, Reach::kCached);
}

// Whoever was refused and waits comes first: what it waits for would be taken
// here as soon as it comes free.
bool QueueBehindWhoWaits(MallocAttempt& attempt, LadderDevice& device) {
  attempt.unmanaged = device.IsUnmanaged(attempt.key);
  attempt.queued = attempt.may_reclaim && device.IsCrowded() &&
                   device.CouldHold(attempt.size);
  return attempt.queued && Reclaim(attempt, device);
}

// Else small results, each made after an eviction, have a handle each, which an
// operator over all of them needs together.
bool RestoreAwaySpace(MallocAttempt& attempt, LadderDevice& device) {
  if (!attempt.may_reclaim || attempt.queued) return false;
  const Address away = device.FindAwaySpace(attempt);
  if (away == 0) return false;
  InLadder in_ladder;
  return device.RestoreSpace(away) && device.Search(attempt, Reach::kCached);
}

bool Grow(MallocAttempt& attempt, LadderDevice& device) {
  attempt.soft = attempt.may_reclaim && device.UnderPressure();
  return device.Grow(attempt);
}

bool CollectOld(MallocAttempt& attempt, LadderDevice& device) {
  if (attempt.all_unmanaged) device.CollectOld();
  return false;
}

bool Buy(MallocAttempt& attempt, LadderDevice& device) {
  return device.FetchUnmanaged(attempt);
}

bool Borrow(MallocAttempt& attempt, LadderDevice& device) {
  return device.Borrow(attempt);
}

bool BorrowFirst(MallocAttempt& attempt, LadderDevice& device) {
  return !device.HasCollectionThreshold() && device.Borrow(attempt);
}

// Nested mallocs, too.
bool ReleaseCached(MallocAttempt& attempt, LadderDevice& device) {
  const Bytes too_much = device.AboveCollectionThreshold(attempt.size);
  device.ReleaseCached(std::max(attempt.size, too_much), PoolId{});
  return device.SearchReleased(attempt, /*collected=*/too_much > 0);
}

// What it has cached in other places (pytorch issue 159674).
bool MoveWithinMemPool(MallocAttempt& attempt, LadderDevice& device) {
  const PoolId owner = attempt.key.owner;
  return owner.is_private() && device.MayMove(owner) &&
         device.ReleaseCached(attempt.size, owner) > 0 &&
         device.Search(attempt, attempt.reach());
}

bool EvictCold(MallocAttempt& attempt, LadderDevice& device) {
  if (!attempt.soft) return false;
  InLadder in_ladder;
  device.ReclaimCold(attempt.lacking);
  return device.SearchBeyondEmergency(attempt);
}

// Native's last resort: wait for what other streams still use. What came free
// by that may be all it takes: it is handed out, not unmapped first. Only then
// does anything leave: a job that fits native's memory fits ours.
bool WaitForEvents(MallocAttempt& attempt, LadderDevice& device) {
  if (!attempt.nested) device.SynchronizePendingFrees();
  return device.SearchAgain(attempt, /*is_retry=*/!attempt.may_reclaim);
}

bool ReleaseAll(MallocAttempt& attempt, LadderDevice& device) {
  if (attempt.may_reclaim) return Take(attempt, device);
  if (!attempt.nested) device.ReleaseCached(kAll, PoolId{});
  return false;
}

// Another thread's release in flight holds memory that is free to have; so does
// one that ended since the driver was asked.
bool OutlastReleases(MallocAttempt& attempt, LadderDevice& device) {
  for (bool came_free = true; came_free;) {
    const std::uint64_t seen = device.Releases();
    if (device.FetchUnmanaged(attempt)) return true;
    if (device.SearchAfterReleases(attempt, seen, &came_free)) return true;
  }
  return false;
}

// Evicting everything for a request that fits nowhere helps nobody.
bool Evict(MallocAttempt& attempt, LadderDevice& device) {
  return attempt.may_reclaim && !attempt.queued &&
         device.CouldHold(attempt.size) && Reclaim(attempt, device);
}

// What ended while this request waited may be held by nobody but those whom
// torch asks for memory.
bool AskOthersAgain(MallocAttempt& attempt, LadderDevice& device) {
  return attempt.may_reclaim && device.FreeMemory() &&
         device.Search(attempt, Reach::kLimit);
}

bool Refuse(MallocAttempt& attempt, LadderDevice& device) {
  const bool fits_nowhere =
      attempt.may_reclaim && device.CannotFit(attempt.size);
  if (attempt.may_reclaim) device.ReleaseCached(kAll, PoolId{});
  attempt.answer = tl::unexpected(device.Refuse(attempt, fits_nowhere));
  return true;
}

constexpr Rung kLadder[] = {
    {"search", Search},
    {"ask others to free", AskOthers},
    {"queue behind who waits", QueueBehindWhoWaits},
    {"restore away space", RestoreAwaySpace},
    {"grow", Grow, /*failure_ends=*/true},
    {"collect old segments", CollectOld},
    {"buy a segment", Buy},
    {"borrow", BorrowFirst},
    {"release cached", ReleaseCached},
    {"buy after the release", Buy},
    {"borrow after the release", Borrow},
    {"move within the MemPool", MoveWithinMemPool, /*failure_ends=*/true},
    {"evict what is cold", EvictCold, /*failure_ends=*/true},
    {"wait for events", WaitForEvents, /*failure_ends=*/true},
    {"release all", ReleaseAll},
    {"outlast releases", OutlastReleases, /*failure_ends=*/true},
    {"evict", Evict},
    {"ask others again", AskOthersAgain},
    {"refuse", Refuse},
};

}  // namespace

std::span<const Rung> Ladder() { return kLadder; }

Result<AllocatedBlock> Climb(MallocAttempt& attempt, LadderDevice& device) {
  for (const Rung& rung : Ladder()) {
    if (rung.climb(attempt, device)) break;
    if (rung.failure_ends && attempt.failed) {
      attempt.EndFailed();
      break;
    }
  }
  STRATALLOC_CHECK(attempt.answer.has_value(), "the last rung has an answer");
  return *std::move(attempt.answer);
}

}  // namespace stratalloc
