// SPDX-License-Identifier: Apache-2.0
// The expected uses of one device's pages, and the pages that leave after a
// use: a Timeline of the uses that operators noted, and a Schedule of its cycle
// once that is stable.
//
//   Note (operators) -> Advance (mover) -> TakeLeaving, NextMissing, Distance
//
// Thread-safety: Note from any thread; the rest by the arbiter's holder.
// Locks: its own for what was noted, a leaf. Lifetime: the device's.
// Errors: none; without a future there is no plan.
// Invariants: a plan is followed until another one is made.
#ifndef STRATALLOC_TIERING_ENGINE_PLANNER_H_
#define STRATALLOC_TIERING_ENGINE_PLANNER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "tiering/policy/fetches.h"
#include "tiering/policy/schedule.h"
#include "tiering/policy/timeline.h"

namespace stratalloc {

class Planner {
 public:
  explicit Planner(DeviceAllocator& device) : device_(device) {}

  // Uses of this device's pages, in the order of one thread.
  void Note(std::span<const PageUse> uses) EXCLUDES(mutex_);
  // Takes over what was noted; true if there was something.
  bool Advance() EXCLUDES(mutex_);
  // Is the cycle stable, and is it time for a schedule of it? Plan makes one.
  // `capacity`: for the pages that may leave.
  bool WantsPlan() const;
  void Plan(Bytes capacity);
  bool has_plan() const { return planned_; }

  // Pages that the plan has leave, and that were not used again since.
  std::vector<HandleRef> Leaving();
  // Evicted pages in the order of their expected use, as far as `room` bytes
  // are enough for them and for what is used before them.
  std::vector<HandleRef> NextMissing(Bytes room);
  // See Timeline::Distance.
  std::uint64_t Distance(Address page) {
    return timeline_ ? timeline_->Distance(page) : Timeline::kNever;
  }
  bool HasFuture() const { return timeline_ && timeline_->HasFuture(); }
  // What is kept free for pages on their way in.
  Bytes Window() const;

  // Nothing comes back ahead of use until a use is the expected one again: the
  // program has evicted by name, and may have done with those pages.
  void Pause() EXCLUDES(mutex_);
  bool paused() const { return paused_; }

 private:
  void Add(const PageUse& use);
  // Was the plan made for the position that is followed? Else it is followed
  // until another one can be made: a jump is mostly to an earlier cycle.
  bool Holds() const {
    return planned_ && timeline_->jumps() == planned_jumps_;
  }
  HandleRef RefOf(Address page) { return device_.table().RefOf(page); }

  DeviceAllocator& device_;
  // Made by the first use: its ring is megabytes.
  std::optional<Timeline> timeline_;
  bool planned_ = false;
  std::uint64_t planned_jumps_ = 0;
  Bytes planned_capacity_ = 0;
  std::uint64_t tried_at_ = 0;  // position at which a plan was made last
  bool paused_ = false;
  std::unordered_set<Address> leaving_;
  Fetches fetches_;
  std::atomic<std::size_t> most_at_once_{1};  // pages of one operator

  Mutex mutex_{LockRank::kUses};
  std::vector<PageUse> noted_ GUARDED_BY(mutex_);
  std::vector<PageUse> taken_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_PLANNER_H_
