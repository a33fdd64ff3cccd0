// SPDX-License-Identifier: Apache-2.0
// The pages that got their first block and those that lost their last one, in
// the order in which that happened: what tiering's planner cannot see from the
// operands of operators. Nothing is noted before the first Take.
//
// Thread-safety: any thread; Note under the device lock, which orders changes.
// Locks: its own, a leaf. Take does not need the device lock: an operator calls
// it, and may not wait for an unmap that waits for the device's work.
// Lifetime: the device's. Errors: none. Invariants: at most kMost changes are
// kept; a change beyond them drops those before it, which were not taken.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_PAGE_CHANGES_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_PAGE_CHANGES_H_

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"

namespace stratalloc {

struct PageChange {
  Address page = 0;
  bool made = false;  // false: its last block was freed
};

class PageChanges {
 public:
  static constexpr std::size_t kMost = 1 << 16;

  void Note(Address page, bool made) EXCLUDES(mutex_) {
    if (!noting()) return;
    MutexLock lock(mutex_);
    if (changes_.size() == kMost) changes_.clear();
    changes_.push_back({page, made});
    some_.store(true, std::memory_order_relaxed);
  }
  bool noting() const { return noting_.load(std::memory_order_relaxed); }
  bool some() const { return some_.load(std::memory_order_relaxed); }
  std::vector<PageChange> Take() EXCLUDES(mutex_) {
    noting_.store(true, std::memory_order_relaxed);
    MutexLock lock(mutex_);
    some_.store(false, std::memory_order_relaxed);
    return std::exchange(changes_, {});
  }

 private:
  std::atomic<bool> noting_{false};
  std::atomic<bool> some_{true};  // so that the first Take comes
  Mutex mutex_{LockRank::kUses};
  std::vector<PageChange> changes_ GUARDED_BY(mutex_);
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_PAGE_CHANGES_H_
