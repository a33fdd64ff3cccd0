// SPDX-License-Identifier: Apache-2.0
// The last so many values, oldest overwritten first. Not thread-safe.
#ifndef STRATALLOC_ALLOCATOR_BASE_RING_H_
#define STRATALLOC_ALLOCATOR_BASE_RING_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace stratalloc {

template <typename T>
class Ring {
 public:
  // At least one; what no longer fits is dropped, oldest first.
  void SetCapacity(std::size_t capacity) {
    capacity_ = std::max<std::size_t>(capacity, 1);
    if (next_ == 0 && values_.size() <= capacity_) return;
    std::vector<T> kept = InOrder();
    if (kept.size() > capacity_) {
      kept.erase(kept.begin(),
                 kept.end() - static_cast<std::ptrdiff_t>(capacity_));
    }
    values_ = std::move(kept);
    next_ = 0;
  }
  void Add(T value) {
    if (values_.size() < capacity_) {
      values_.push_back(std::move(value));
    } else {
      Oldest() = std::move(value);
    }
  }
  // The place of the newest value, which still holds the one it overwrites.
  T& Next() {
    return values_.size() < capacity_ ? values_.emplace_back() : Oldest();
  }
  void Clear() {
    values_ = {};
    next_ = 0;
  }
  // Oldest first.
  std::vector<T> InOrder() const {
    std::vector<T> all;
    all.reserve(values_.size());
    const auto oldest = values_.begin() + static_cast<std::ptrdiff_t>(next_);
    all.insert(all.end(), oldest, values_.end());
    all.insert(all.end(), values_.begin(), oldest);
    return all;
  }

 private:
  T& Oldest() {
    T& place = values_[next_];
    if (++next_ == capacity_) next_ = 0;
    return place;
  }

  std::size_t capacity_ = 1;
  std::size_t next_ = 0;  // the oldest, once full
  std::vector<T> values_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_RING_H_
