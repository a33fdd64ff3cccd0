// SPDX-License-Identifier: Apache-2.0
// The pages that got their first block and those that lost their last one, in
// the order in which that happened: what tiering's planner cannot see from the
// operands of operators. Nothing is noted before the first Take.
//
// Thread-safety: Note and Take under the device lock; some() from any thread.
// Lifetime: the device's. Errors: none. Invariants: at most kMost changes are
// kept; a change beyond them drops those before it, which were not taken.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_PAGE_CHANGES_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_PAGE_CHANGES_H_

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct PageChange {
  Address page = 0;
  bool made = false;  // false: its last block was freed
};

class PageChanges {
 public:
  static constexpr std::size_t kMost = 1 << 16;

  void Note(Address page, bool made) {
    if (!noting_) return;
    if (changes_.size() == kMost) changes_.clear();
    changes_.push_back({page, made});
    some_.store(true, std::memory_order_relaxed);
  }
  // Under the device lock: are they noted?
  bool noting() const { return noting_; }
  bool some() const { return some_.load(std::memory_order_relaxed); }
  std::vector<PageChange> Take() {
    noting_ = true;
    some_.store(false, std::memory_order_relaxed);
    return std::exchange(changes_, {});
  }

 private:
  bool noting_ = false;
  std::atomic<bool> some_{true};  // so that the first Take comes
  std::vector<PageChange> changes_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_PAGE_CHANGES_H_
