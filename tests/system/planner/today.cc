// SPDX-License-Identifier: Apache-2.0
// The policy before the timeline: tiering/policy/victims over the last four
// intervals of a page, and prefetch of what scope_trace expects.
#include <algorithm>
#include <utility>

#include "tests/system/planner/policy.h"
#include "tests/system/planner/scope_trace.h"
#include "tiering/policy/victims.h"

namespace stratalloc::planner {
namespace {

class Today : public Policy {
 public:
  explicit Today(Device& device)
      : Policy(device), uses_(device.pages()), kept_(device.pages(), 0) {}

  void Used(const Event& event) override {
    PageNumber before = kNone;
    for (const PageAccess& access : event.pages) {
      // A tick for each tensor: runs of pages are about that.
      if (before == kNone || access.page != before + 1)
        now_ += HandleUse::kTick;
      before = access.page;
      Candidate& use = uses_[access.page];
      if (access.kind == 'n') use = Candidate{};
      const bool first = use.last_use == 0;
      const bool is_burst = !first && now_ - use.last_use <= kBurstTicks;
      if (!first && !is_burst) {
        std::rotate(use.intervals.rbegin(), use.intervals.rbegin() + 1,
                    use.intervals.rend());
        use.intervals[0] = now_ - use.last_use;
      }
      if (!is_burst) log_.push_back(access.page);
      use.last_use = now_;
    }
  }

  void Scope(std::uint64_t step) override {
    if (step_ != ScopeTrace::kNoStep) {
      trace_.Learn(step_, std::exchange(log_, {}), step);
    }
    step_ = step;
    const std::size_t most = std::max<std::size_t>(1, device_.capacity() / 4);
    const std::vector<Address> expected = trace_.Expect(step, most, 48);
    ++keep_;
    for (Address page : expected) kept_[page] = keep_;
    for (Address page : expected) {
      const PageNumber number = static_cast<PageNumber>(page);
      if (device_.IsResident(number) || !device_.IsLive(number)) continue;
      if (device_.IsFull()) {
        const PageNumber victim = Coldest(true);
        if (victim == kNone) break;
        device_.Evict(victim);
      }
      device_.Bring(number, false);
    }
  }

  PageNumber Victim() override { return Coldest(false); }

 private:
  PageNumber Coldest(bool keep) const {
    PageNumber victim = kNone;
    std::pair<std::uint32_t, bool> coldest;
    for (PageNumber page = 0; page < uses_.size(); ++page) {
      if (!device_.MayLeave(page) || (keep && kept_[page] == keep_)) continue;
      const std::pair cold(Coldness(uses_[page], now_), !device_.IsDirty(page));
      if (victim == kNone || cold > coldest) victim = page, coldest = cold;
    }
    return victim;
  }

  std::uint32_t now_ = 0;
  std::vector<Candidate> uses_;
  std::vector<std::uint64_t> kept_;
  std::uint64_t keep_ = 0;
  ScopeTrace trace_;
  ScopeTrace::Step step_ = ScopeTrace::kNoStep;
  std::vector<Address> log_;
};

}  // namespace

std::unique_ptr<Policy> MakeToday(Device& device) {
  return std::make_unique<Today>(device);
}

}  // namespace stratalloc::planner
