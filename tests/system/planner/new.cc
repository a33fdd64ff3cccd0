// SPDX-License-Identifier: Apache-2.0
// The policy of Timeline and Schedule, run as the engine runs it: marked pages
// leave after their use, missing pages are fetched in the expected order while
// frames are free, and what the plan does not foresee evicts the farthest next
// use of the timeline, or else the least recently used page.
#include <algorithm>
#include <utility>

#include "tests/system/planner/policy.h"
#include "tiering/policy/fetches.h"
#include "tiering/policy/schedule.h"
#include "tiering/policy/timeline.h"

namespace stratalloc::planner {
namespace {

constexpr Bytes kPage = 2 * kMiB;

class New : public Policy {
 public:
  using Policy::Policy;

  void Used(const Event& event) override {
    largest_ = std::max(largest_, event.pages.size());
    std::vector<PageNumber> leaving;
    for (const PageAccess& access : event.pages) {
      const bool leaves = timeline_.Add({.page = access.page * kPage,
                                         .written = access.kind != 'r',
                                         .made = access.kind == 'n'});
      if (leaves) leaving.push_back(access.page);
    }
    for (PageNumber page : leaving) {
      if (device_.IsResident(page)) device_.Evict(page);
    }
    Plan();
    Fetch();
  }
  void Freed(const Event& event) override {
    for (const PageAccess& access : event.pages) {
      timeline_.Add({.page = access.page * kPage, .freed = true});
    }
    Fetch();
  }

  PageNumber Victim() override {
    PageNumber victim = kNone;
    std::pair<std::uint64_t, std::uint64_t> farthest;
    for (PageNumber page = 0; page < device_.pages(); ++page) {
      if (!device_.MayLeave(page)) continue;
      const std::pair far(timeline_.Distance(page * kPage),
                          timeline_.Age(page * kPage));
      if (victim == kNone || far > farthest) victim = page, farthest = far;
    }
    return victim;
  }

 private:
  // Pages in use and four more.
  std::size_t Window() const { return largest_ + 4; }

  void Plan() {
    const std::uint64_t length = timeline_.StableLength();
    if (length == 0) return;
    const bool holds =
        planned_jumps_ == timeline_.jumps() && planned_window_ == Window() &&
        (planned_length_ == length || timeline_.now() < planned_at_ + length);
    if (holds) return;
    std::vector<CycleUse> cycle;
    cycle.reserve(length);
    for (std::uint64_t i = 0; i < length; ++i) {
      const PageUse use = timeline_.Expected(i);
      cycle.push_back({use.page, kPage, use.written, use.freed});
    }
    timeline_.Mark(MakeSchedule(cycle, {.capacity = device_.capacity() * kPage,
                                        .window = Window() * kPage})
                       .leaves);
    planned_jumps_ = timeline_.jumps();
    planned_length_ = length;
    planned_window_ = Window();
    planned_at_ = timeline_.now();
  }

  void Fetch() {
    const auto state = [this](Address address) -> Fetches::State {
      const PageNumber page = Number(address);
      const auto where = device_.IsResident(page) ? Fetches::Where::kResident
                         : device_.IsLive(page)   ? Fetches::Where::kEvicted
                                                  : Fetches::Where::kFree;
      return {where, kPage};
    };
    if (device_.IsFull()) return;
    const Bytes room = (device_.capacity() - device_.used()) * kPage;
    for (Address address :
         fetches_.Next(timeline_, {.room = room, .delay = largest_}, state)) {
      device_.Bring(Number(address), false);
    }
  }

  static PageNumber Number(Address address) {
    return static_cast<PageNumber>(address / kPage);
  }

  Timeline timeline_;
  std::size_t largest_ = 0;
  std::uint64_t planned_jumps_ = ~std::uint64_t{0};
  std::uint64_t planned_length_ = 0;
  std::uint64_t planned_at_ = 0;
  std::size_t planned_window_ = 0;
  Fetches fetches_;
};

}  // namespace

std::unique_ptr<Policy> MakeNew(Device& device) {
  return std::make_unique<New>(device);
}

}  // namespace stratalloc::planner
