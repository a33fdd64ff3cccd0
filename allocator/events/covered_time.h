// SPDX-License-Identifier: Apache-2.0
// Time that intervals cover which may overlap: an instant that lies in several
// of them counts once. Intervals are added when they end.
//
// Thread-safety: any thread. Locks: kMoves, a leaf. Nothing here fails.
// Invariants: ns() never falls. It is exact unless an interval began before
// the end of the kMost-th newest gap: what it covers before that is not added.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_COVERED_TIME_H_
#define STRATALLOC_ALLOCATOR_EVENTS_COVERED_TIME_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/mutex.h"

namespace stratalloc {

class CoveredTime {
 public:
  static constexpr std::size_t kMost = 32;

  void Add(std::int64_t began, std::int64_t ended) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    began = std::max(began, floor_);
    if (ended <= began) return;
    // [first, last): the spans that this one touches and becomes one with.
    std::size_t last = count_;
    while (last > 0 && spans_[last - 1].began > ended) --last;
    std::size_t first = last;
    std::int64_t known = 0;
    while (first > 0 && spans_[first - 1].ended >= began) {
      const Span& span = spans_[--first];
      known += span.ended - span.began;
      began = std::min(began, span.began);
      ended = std::max(ended, span.ended);
    }
    const auto at = spans_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto after = spans_.begin() + static_cast<std::ptrdiff_t>(last);
    const auto end = spans_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (first == last) {
      std::move_backward(at, end, end + 1);
      ++count_;
    } else {
      std::move(after, end, at + 1);
      count_ -= last - first - 1;
    }
    *at = {began, ended};
    if (count_ > kMost) {
      floor_ = spans_[0].ended;
      std::move(spans_.begin() + 1, spans_.end(), spans_.begin());
      --count_;
    }
    // relaxed: no reader concludes anything from it about another number.
    ns_.store(ns_.load(std::memory_order_relaxed) +
                  static_cast<std::uint64_t>(ended - began - known),
              std::memory_order_relaxed);
  }

  std::uint64_t ns() const { return ns_.load(std::memory_order_relaxed); }

 private:
  struct Span {
    std::int64_t began = 0, ended = 0;
  };

  Mutex mutex_{LockRank::kMoves};
  // In order, with gaps between them; the newest of them.
  std::array<Span, kMost + 1> spans_ GUARDED_BY(mutex_){};
  std::size_t count_ GUARDED_BY(mutex_) = 0;
  std::int64_t floor_ GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> ns_{0};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_COVERED_TIME_H_
