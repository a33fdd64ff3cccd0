// SPDX-License-Identifier: Apache-2.0
// A device of pages of one size, and the policies that are compared on it.
//
// An operator needs all of its pages at once. A page that is missing is copied
// in unless it is new; a page that leaves is copied out if it was written since
// it came. A free drops the page, wherever its bytes are.
//
// Thread-safety: none. Errors: an operator that has more pages than the device
// gets them all, and is counted.
#ifndef STRATALLOC_TESTS_SYSTEM_PLANNER_POLICY_H_
#define STRATALLOC_TESTS_SYSTEM_PLANNER_POLICY_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tests/system/planner/uses.h"

namespace stratalloc::planner {

class Device {
 public:
  Device(std::size_t pages, std::size_t capacity)
      : capacity_(capacity), pages_(pages) {}

  std::size_t capacity() const { return capacity_; }
  std::size_t pages() const { return pages_.size(); }
  std::size_t used() const { return used_; }
  bool IsFull() const { return used_ >= capacity_; }
  bool IsResident(PageNumber page) const { return pages_[page].resident; }
  bool IsLive(PageNumber page) const { return pages_[page].live; }
  bool IsDirty(PageNumber page) const { return pages_[page].dirty; }
  // Whether the running operator leaves the page alone.
  bool MayLeave(PageNumber page) const {
    return pages_[page].resident && pages_[page].pinned != operator_;
  }

  void BeginOperator(const Event& event);
  void Bring(PageNumber page, bool is_new);
  void Write(PageNumber page) { pages_[page].dirty = true; }
  void Evict(PageNumber page);
  void Free(PageNumber page);

  std::uint64_t copied_in = 0, copied_out = 0, overflows = 0;

 private:
  struct Page {
    bool resident = false, live = false, dirty = false;
    std::uint64_t pinned = 0;  // by the operator of this number
  };
  std::size_t capacity_, used_ = 0;
  std::uint64_t operator_ = 0;
  std::vector<Page> pages_;
};

class Policy {
 public:
  static constexpr PageNumber kNone = ~PageNumber{0};

  explicit Policy(Device& device) : device_(device) {}
  virtual ~Policy() = default;

  // A page that may leave, or kNone.
  virtual PageNumber Victim() = 0;
  virtual void Used(const Event&) {}  // the operator ended
  virtual void Freed(const Event&) {}
  virtual void Scope(std::uint64_t /*step*/) {}

 protected:
  Device& device_;
};

// "optimum", "lru", "prefix", "today" or "new".
std::unique_ptr<Policy> MakePolicy(std::string_view name, Device& device,
                                   const Trace& trace);

// Those of other files.
std::unique_ptr<Policy> MakeToday(Device& device);
std::unique_ptr<Policy> MakeNew(Device& device);

}  // namespace stratalloc::planner

#endif  // STRATALLOC_TESTS_SYSTEM_PLANNER_POLICY_H_
