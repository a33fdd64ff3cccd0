// SPDX-License-Identifier: Apache-2.0
#include "tests/system/planner/policy.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "allocator/base/check.h"

namespace stratalloc::planner {

void Device::BeginOperator(const Event& event) {
  ++operator_;
  for (const PageAccess& access : event.pages) {
    pages_[access.page].pinned = operator_;
  }
}

void Device::Bring(PageNumber page, bool is_new) {
  Page& at = pages_[page];
  overflows += IsFull();
  at.resident = at.live = true;
  at.dirty = is_new;
  copied_in += !is_new;
  ++used_;
}

void Device::Evict(PageNumber page) {
  Page& at = pages_[page];
  STRATALLOC_CHECK(at.resident, "a victim is resident");
  copied_out += at.dirty;
  at.resident = at.dirty = false;
  --used_;
}

void Device::Free(PageNumber page) {
  Page& at = pages_[page];
  used_ -= at.resident;
  at.resident = at.live = at.dirty = false;
}

namespace {

// Belady's: the farthest next use leaves; a page that is freed before its next
// use is the farthest, a clean one first.
class Optimum : public Policy {
 public:
  Optimum(Device& device, const Trace& trace)
      : Policy(device), next_(trace.pages, kNever), uses_(trace.pages) {
    std::size_t time = 0;
    for (const Event& event : trace.events) {
      if (event.kind != 'o' && event.kind != 'f') continue;
      ++time;
      for (const PageAccess& access : event.pages) {
        uses_[access.page].push_back({time, event.kind == 'f'});
      }
    }
    for (auto& uses : uses_) std::reverse(uses.begin(), uses.end());
  }

  void Used(const Event& event) override {
    ++time_;
    for (const PageAccess& access : event.pages) Look(access.page);
  }
  void Freed(const Event& event) override { Used(event); }

  PageNumber Victim() override {
    std::vector<Entry> kept;
    PageNumber victim = kNone;
    while (!farthest_.empty()) {
      const Entry entry = farthest_.top();
      const auto [time, clean, page] = entry;
      if (!device_.IsResident(page) || next_[page] != time ||
          clean == device_.IsDirty(page)) {
        farthest_.pop();
        if (device_.IsResident(page) && next_[page] == time) Push(page);
        continue;
      }
      farthest_.pop();
      kept.push_back(entry);
      if (!device_.MayLeave(page)) continue;
      victim = page;
      break;
    }
    for (const Entry& entry : kept) farthest_.push(entry);
    return victim;
  }

 private:
  static constexpr std::size_t kNever = ~std::size_t{0};
  using Entry = std::tuple<std::size_t, bool, PageNumber>;
  struct Use {
    std::size_t time;
    bool freed;
  };

  void Push(PageNumber page) {
    farthest_.push({next_[page], !device_.IsDirty(page), page});
  }
  void Look(PageNumber page) {
    auto& uses = uses_[page];
    while (!uses.empty() && uses.back().time <= time_) uses.pop_back();
    next_[page] = uses.empty() || uses.back().freed ? kNever : uses.back().time;
    Push(page);
  }

  std::size_t time_ = 0;
  std::vector<std::size_t> next_;
  std::vector<std::vector<Use>> uses_;
  std::priority_queue<Entry> farthest_;
};

class LeastRecent : public Policy {
 public:
  explicit LeastRecent(Device& device)
      : Policy(device), last_(device.pages(), 0) {}
  void Used(const Event& event) override {
    ++now_;
    for (const PageAccess& access : event.pages) last_[access.page] = now_;
  }
  PageNumber Victim() override {
    PageNumber victim = kNone;
    for (PageNumber page = 0; page < last_.size(); ++page) {
      if (!device_.MayLeave(page)) continue;
      if (victim == kNone || last_[page] < last_[victim]) victim = page;
    }
    return victim;
  }

 protected:
  std::uint64_t now_ = 0;
  std::vector<std::uint64_t> last_;
};

// The pages first used stay, and the rest of the cycle passes through a window.
class Prefix : public LeastRecent {
 public:
  static constexpr std::size_t kWindow = 24;

  explicit Prefix(Device& device)
      : LeastRecent(device), rank_(device.pages(), kNone) {}
  void Used(const Event& event) override {
    LeastRecent::Used(event);
    for (const PageAccess& access : event.pages) {
      if (rank_[access.page] == kNone) rank_[access.page] = known_++;
    }
  }
  PageNumber Victim() override {
    const std::size_t kept =
        device_.capacity() > kWindow ? device_.capacity() - kWindow : 0;
    PageNumber victim = kNone, last = kNone;
    for (PageNumber page = 0; page < last_.size(); ++page) {
      if (!device_.MayLeave(page)) continue;
      if (last == kNone || rank_[page] > rank_[last]) last = page;
      if (rank_[page] < kept) continue;
      if (victim == kNone || last_[page] < last_[victim]) victim = page;
    }
    return victim != kNone ? victim : last;
  }

 private:
  std::vector<PageNumber> rank_;
  PageNumber known_ = 0;
};

}  // namespace

std::unique_ptr<Policy> MakePolicy(std::string_view name, Device& device,
                                   const Trace& trace) {
  if (name == "optimum") return std::make_unique<Optimum>(device, trace);
  if (name == "lru") return std::make_unique<LeastRecent>(device);
  if (name == "prefix") return std::make_unique<Prefix>(device);
  if (name == "today") return MakeToday(device);
  STRATALLOC_CHECK(name == "new", "no policy has this name");
  return MakeNew(device);
}

}  // namespace stratalloc::planner
