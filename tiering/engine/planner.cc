// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/planner.h"

#include <algorithm>
#include <utility>

namespace stratalloc {
namespace {

// Pages that the plan keeps free: those of an operator, and some that are
// summed, unmapped and mapped. An operator over a list sweeps over many more
// than are worth keeping free.
constexpr std::size_t kSpare = 6;
constexpr std::size_t kMostInUse = 8;
// Uses that are looked through for what is missing.
constexpr std::uint64_t kLookAhead = 4096;
// Uses that are kept for the mover.
constexpr std::size_t kMostNoted = Timeline::kCapacity;
// A plan is made again if the capacity is off by more than this part of it.
constexpr Bytes kSlack = 64;

}  // namespace

void Planner::Note(std::span<const PageUse> uses) {
  MutexLock lock(mutex_);
  // The mover may wait for a disk: old uses are worth less than new ones.
  if (noted_.size() > kMostNoted) noted_.clear();
  noted_.insert(noted_.end(), uses.begin(), uses.end());
  // Almost no operator has more than the largest so far.
  if (uses.size() <= most_at_once_.load()) return;
  std::vector<Address> pages;
  for (const PageUse& use : uses) {
    if (!use.freed) pages.push_back(use.page);
  }
  std::sort(pages.begin(), pages.end());
  const auto end = std::unique(pages.begin(), pages.end());
  const auto distinct = static_cast<std::size_t>(end - pages.begin());
  most_at_once_.store(std::max(most_at_once_.load(), distinct));
}

bool Planner::Advance() {
  {
    MutexLock lock(mutex_);
    taken_.clear();
    taken_.swap(noted_);
  }
  if (!timeline_ && !taken_.empty()) timeline_.emplace();
  for (const PageUse& use : taken_) {
    const std::uint64_t followed = timeline_->followed();
    Add(use);
    if (timeline_->followed() != followed) paused_ = false;
  }
  return !taken_.empty();
}

void Planner::Add(const PageUse& use) {
  if (timeline_->Add(use)) {
    leaving_.insert(use.page);
  } else {
    leaving_.erase(use.page);
  }
}

Bytes Planner::Window() const {
  const Bytes page =
      device_.table().region(true, PoolKind::kLarge).handle_bytes;
  const Bytes wanted =
      (std::min(most_at_once_.load(), kMostInUse) + kSpare) * page;
  return std::min(wanted, device_.capacity() / 4);
}

bool Planner::WantsPlan() const {
  const std::uint64_t length = timeline_ ? timeline_->StableLength() : 0;
  if (length == 0) return false;
  // Not for each use of a cycle that does not settle.
  const std::uint64_t since = timeline_->now() - tried_at_;
  return tried_at_ == 0 || since >= (Holds() ? length : length / 4);
}

void Planner::Plan(Bytes capacity) {
  const std::uint64_t length = timeline_->StableLength();
  tried_at_ = timeline_->now();
  const Bytes off = std::max(capacity, planned_capacity_) -
                    std::min(capacity, planned_capacity_);
  if (Holds() && off <= planned_capacity_ / kSlack) return;
  std::vector<CycleUse> cycle;
  cycle.reserve(length);
  for (std::uint64_t i = 0; i < length; ++i) {
    const PageUse use = timeline_->Expected(i);
    const HandleRef handle = RefOf(use.page);
    cycle.push_back({use.page, handle.region == nullptr ? 0 : handle.bytes(),
                     use.written, use.freed});
  }
  const Schedule schedule =
      MakeSchedule(cycle, {.capacity = capacity, .window = Window()});
  timeline_->Mark(schedule.leaves);
  planned_ = true;
  planned_jumps_ = timeline_->jumps();
  planned_capacity_ = capacity;
  leaving_.clear();
}

std::vector<HandleRef> Planner::Leaving() {
  std::vector<HandleRef> leaving;
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    const HandleRef handle = RefOf(*it);
    if (handle.region == nullptr || handle.state() != HandleState::kResident) {
      const bool gone = handle.region == nullptr || IsAway(handle.state()) ||
                        handle.state() == HandleState::kUnmapped;
      it = gone ? leaving_.erase(it) : std::next(it);
      continue;
    }
    if (handle.use().pins.load() == 0 && !handle.use().is_claimed()) {
      leaving.push_back(handle);
    }
    ++it;
  }
  return leaving;
}

std::vector<HandleRef> Planner::NextMissing(Bytes room) {
  std::vector<HandleRef> missing;
  if (!timeline_) return missing;
  const auto state = [this](Address page) -> Fetches::State {
    const HandleRef handle = RefOf(page);
    if (handle.region == nullptr) return {};
    const HandleState at = handle.state();
    // What is dead and mapped still serves the next page that is made.
    const auto where = IsOnDevice(at)            ? Fetches::Where::kResident
                       : timeline_->IsDead(page) ? Fetches::Where::kFree
                       : at == HandleState::kUnmapped ? Fetches::Where::kFree
                       : at == HandleState::kPoisoned
                           ? Fetches::Where::kFree
                           : Fetches::Where::kEvicted;
    return {where, handle.bytes()};
  };
  const Fetches::Limits limits{
      .room = room,
      .delay = std::min(most_at_once_.load(), kMostInUse),
      .uses = kLookAhead,
      .bytes = Window()};
  for (Address page : fetches_.Next(*timeline_, limits, state)) {
    missing.push_back(RefOf(page));
  }
  return missing;
}

void Planner::Pause() {
  Advance();
  paused_ = true;
}

}  // namespace stratalloc
