// SPDX-License-Identifier: Apache-2.0
// Segment tree: adds a number to a range of an array, and answers the maximum
// of a range, both in O(log n).
//
// Thread-safety: none; the caller's. Errors: none.
#ifndef STRATALLOC_TIERING_POLICY_RANGE_MAXIMUM_H_
#define STRATALLOC_TIERING_POLICY_RANGE_MAXIMUM_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace stratalloc {

class RangeMaximum {
 public:
  static constexpr std::int64_t kLowest =
      std::numeric_limits<std::int64_t>::min() / 4;

  explicit RangeMaximum(std::span<const std::int64_t> values)
      : leaves_(std::bit_ceil(std::max<std::size_t>(values.size(), 1))),
        maximum_(2 * leaves_, kLowest),
        added_(2 * leaves_, 0) {
    std::copy(values.begin(), values.end(), maximum_.begin() + leaves_);
    for (std::size_t i = leaves_ - 1; i > 0; --i) Pull(i);
  }

  // Of the whole array.
  std::int64_t Maximum() const { return maximum_[1]; }

  // Of [begin, end); kLowest if it is empty.
  std::int64_t Maximum(std::size_t begin, std::size_t end) const {
    if (begin >= end) return kLowest;
    // `left` and `right` are the maxima found on either side, below the nodes
    // whose additions were applied.
    std::int64_t left = kLowest, right = kLowest;
    std::size_t l = begin + leaves_, r = end + leaves_ - 1;
    left = maximum_[l];
    right = maximum_[r];
    for (; l / 2 != r / 2; l /= 2, r /= 2) {
      if (l % 2 == 0) left = std::max(left, maximum_[l + 1]);
      if (r % 2 == 1) right = std::max(right, maximum_[r - 1]);
      left += added_[l / 2];
      right += added_[r / 2];
    }
    std::int64_t both = std::max(left, right);
    for (l /= 2; l > 0; l /= 2) {
      // Nodes above the one that joins both sides.
      both += added_[l];
    }
    return both;
  }

  // To each of [begin, end).
  void Add(std::size_t begin, std::size_t end, std::int64_t number) {
    if (begin >= end) return;
    std::size_t l = begin + leaves_, r = end + leaves_;
    const std::size_t first = l, last = r - 1;
    for (; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) AddTo(l++, number);
      if (r % 2 == 1) AddTo(--r, number);
    }
    l = first / 2, r = last / 2;
    for (; l != r; l /= 2, r /= 2) Pull(l), Pull(r);
    for (; l > 0; l /= 2) Pull(l);
  }

 private:
  void AddTo(std::size_t node, std::int64_t number) {
    maximum_[node] += number;
    added_[node] += number;
  }
  void Pull(std::size_t node) {
    maximum_[node] =
        std::max(maximum_[2 * node], maximum_[2 * node + 1]) + added_[node];
  }

  std::size_t leaves_;
  std::vector<std::int64_t> maximum_;  // of the node's range
  std::vector<std::int64_t> added_;    // to the whole range of the node
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_RANGE_MAXIMUM_H_
