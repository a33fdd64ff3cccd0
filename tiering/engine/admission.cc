// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/admission.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {

// Frees and operators that leave are not announced to everybody who waits, and
// an announcement may be missed: so often each looks for itself.
constexpr std::chrono::milliseconds kLookEvery{1};
// So often somebody younger is served before the oldest; an operator takes
// tens of microseconds.
constexpr int kPassedOver = 8;
// An operator that has not returned for so long may itself wait, for one that
// has yet to begin (the ranks of a collective): that one may begin then.
constexpr std::int64_t kMovingNs = 20'000'000;

}  // namespace

thread_local Admission::Turn* Admission::Turn::mine = nullptr;

Admission::World Admission::LookLocked(Turn& turn) {
  const World world = options_.look();
  running_ = world.running;
  const bool busy = world.device_busy || AnotherTriesLocked(turn);
  const std::int64_t now = options_.now_ns();
  if (busy && !turn.busy_) turn.busy_since_ns_ = now;
  // The first look that finds it idle may come long after it was busy. Pages
  // that a try has chosen keep it busy for moments: those do not count.
  if (!busy && turn.busy_ && now - turn.busy_since_ns_ >= options_.quiet_ns) {
    turn.busy_ns_ += now - turn.busy_since_ns_;
    turn.busy_until_ns_ = now;
  }
  turn.busy_ = busy;
  if (world.freed != freed_) {
    freed_ = world.freed;
    freed_ns_ = options_.now_ns();
  }
  if (world.progress != progress_) {
    progress_ = world.progress;
    ChangeLocked();
  }
  return world;
}

void Admission::ChangeLocked() {
  ++change_;
  changed_ns_ = options_.now_ns();
  changed_.NotifyAll();
}

void Admission::NoteChange() {
  MutexLock lock(mutex_);
  ChangeLocked();
}

bool Admission::WaitsForOldestLocked(const Turn& turn) const {
  // The turn concerns itself, so that there is one.
  const Turn& oldest =
      *std::find_if(turns_.begin(), turns_.end(), [&](const auto& each) {
         mutex_.AssertHeld();
         return each.second->Concerns(turn);
       })->second;
  return turn.fresh_ && &oldest != &turn && running_ &&
         oldest.refusals_ >= kPassedOver && oldest.lack_ == Lack::kPins &&
         options_.now_ns() - changed_ns_ < kMovingNs;
}

// A younger thread may try if the oldest waits for streams for so long.
bool Admission::StandsStillLocked(const Turn& turn) const {
  return turn.waits_since_ != Turn::kNotWaiting &&
         options_.now_ns() - turn.waits_since_ >= kMovingNs;
}

bool Admission::AnotherTriesLocked(const Turn& turn) const {
  const std::int64_t now = options_.now_ns();
  return std::any_of(turns_.begin(), turns_.end(), [&](const auto& each) {
    mutex_.AssertHeld();
    const Turn& other = *each.second;
    return &other != &turn && other.trying_ && other.Concerns(turn) &&
           now - other.began_ns_ >= options_.quiet_ns;
  });
}

bool Admission::MayTryLocked(Turn& turn) {
  if (turn.refused_at_ == change_ || WaitsForOldestLocked(turn)) return false;
  const bool may =
      std::all_of(turns_.begin(), turns_.end(), [&](const auto& each) {
        mutex_.AssertHeld();
        const Turn& other = *each.second;
        if (&other == &turn || !other.Concerns(turn)) return true;
        if (StandsStillLocked(other)) return true;
        // One tries at a time: what it chose is used again by another that
        // tries. And the older ones try first.
        return !other.trying_ &&
               (other.ticket_ > turn.ticket_ || other.refused_at_ == change_);
      });
  if (may) {
    turn.tried_at_ = change_;
    if (!std::exchange(turn.trying_, true)) turn.began_ns_ = options_.now_ns();
  }
  return may;
}

bool Admission::IsHopelessLocked(const Turn& turn, const World& world) {
  if (turn.refusals_ == 0) return false;
  const std::int64_t now = options_.now_ns();
  const std::int64_t waited = now - turn.refused_ns_ - turn.tried_ns_;
  if (waited >= options_.busy_ns) return true;
  // Time in which the device was busy for long does not count: what left it may
  // be what the thread lacked.
  const std::int64_t busy =
      turn.busy_ns_ + (turn.busy_ ? now - turn.busy_since_ns_ : 0);
  if (waited - busy >= options_.running_ns) return true;
  if (turn.lack_ == Lack::kMemory) {
    const bool youngest =
        std::none_of(turns_.upper_bound(turn.ticket_), turns_.end(),
                     [&](const auto& younger) {
                       mutex_.AssertHeld();
                       return younger.second->lack_ == Lack::kMemory &&
                              younger.second->Concerns(turn);
                     });
    const bool alone = !world.others && !world.under_way &&
                       turns_.size() == 1 && turn.refused_at_ == change_;
    if (youngest && (alone || waited >= options_.memory_ns ||
                     std::min(waited, now - freed_ns_) >= options_.quiet_ns)) {
      return true;
    }
  }
  const bool all_refused =
      std::all_of(turns_.begin(), turns_.end(), [&](const auto& each) {
        mutex_.AssertHeld();
        const Turn& other = *each.second;
        return !other.Concerns(turn) ||
               (other.refused_at_ == change_ && other.ticket_ <= turn.ticket_);
      });
  if (!all_refused) return false;
  // Alone in the process: nobody could change anything.
  if (!world.others && !world.under_way && turns_.size() == 1) return true;
  if (turn.busy_) return false;
  const std::int64_t patience = world.running || world.under_way
                                    ? options_.running_ns
                                    : options_.quiet_ns;
  return now - std::max(changed_ns_, turn.busy_until_ns_) >= patience;
}

void Admission::CountRefusedLocked() {
  crowded_.store(
      std::any_of(turns_.begin(), turns_.end(),
                  [](const auto& each) { return each.second->refusals_ != 0; }),
      std::memory_order_relaxed);
}

Admission::Turn::Turn(Admission& admission, std::uint64_t ticket,
                      std::uint64_t devices, bool fresh)
    : admission_(admission), ticket_(ticket), devices_(devices), fresh_(fresh) {
  MutexLock lock(admission_.mutex_);
  const bool first = admission_.turns_.empty();
  const bool inserted = admission_.turns_.emplace(ticket, this).second;
  STRATALLOC_CHECK(inserted, "two turns with one ticket");
  // What happened while nobody waited is no news to anybody.
  if (first) admission_.ChangeLocked();
}

Admission::Turn::~Turn() {
  MutexLock lock(admission_.mutex_);
  admission_.turns_.erase(ticket_);
  admission_.CountRefusedLocked();
  // Who gives up frees what it had on its way out; and the next in line need
  // not wait for this one any more.
  admission_.ChangeLocked();
}

bool Admission::Turn::MayTry() {
  MutexLock lock(admission_.mutex_);
  // Alone, as nearly always, nobody is asked about.
  if (admission_.turns_.size() > 1) admission_.LookLocked(*this);
  return admission_.MayTryLocked(*this);
}

bool Admission::Turn::Await() {
  while (true) {
    {
      MutexLock lock(admission_.mutex_);
      const World world = admission_.LookLocked(*this);
      // First: where something changes all the time there is always a reason to
      // try once more.
      if (admission_.IsHopelessLocked(*this, world)) return false;
      if (admission_.MayTryLocked(*this)) return true;
      admission_.changed_.WaitFor(admission_.mutex_, kLookEvery);
    }
    admission_.options_.poll();
  }
}

void Admission::Turn::AwaitChange() {
  {
    MutexLock lock(admission_.mutex_);
    admission_.LookLocked(*this);
    if (admission_.MayTryLocked(*this)) return;
    admission_.changed_.WaitFor(admission_.mutex_, kLookEvery);
  }
  admission_.options_.poll();
}

void Admission::Turn::BeginWait() {
  MutexLock lock(admission_.mutex_);
  waits_since_ = admission_.options_.now_ns();
}

void Admission::Turn::EndWait() {
  MutexLock lock(admission_.mutex_);
  waits_since_ = kNotWaiting;
}

void Admission::Turn::Refused(Lack lack) {
  MutexLock lock(admission_.mutex_);
  refused_at_ = tried_at_;
  const std::int64_t now = admission_.options_.now_ns();
  const bool tried = std::exchange(trying_, false);
  // Tries may wait for a disk: that is no time in which nothing happens.
  if (refusals_++ == 0) {
    refused_ns_ = now;
  } else if (tried) {
    tried_ns_ += now - began_ns_;
  }
  lack_ = lack;
  admission_.CountRefusedLocked();
  // The next in line may try.
  admission_.changed_.NotifyAll();
}

}  // namespace stratalloc
