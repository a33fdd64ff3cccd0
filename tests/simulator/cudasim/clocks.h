// SPDX-License-Identifier: Apache-2.0
//
// clocks.h: vector clocks over streams. Every operation of a stream has a
// number, counted from 1. A clock holds one number per stream and stands for
// "all operations up to there": the past of a stream's next operation, of an
// event, or of what the host has seen completed.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CLOCKS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cudasim {

class VectorClock {
 public:
  uint64_t Get(size_t stream) const {
    return stream < numbers_.size() ? numbers_[stream] : 0;
  }
  void Set(size_t stream, uint64_t number) {
    if (stream >= numbers_.size()) numbers_.resize(stream + 1, 0);
    numbers_[stream] = number;
  }
  bool Covers(size_t stream, uint64_t number) const {
    return number <= Get(stream);
  }
  void Join(const VectorClock& other) {
    if (other.numbers_.size() > numbers_.size()) {
      numbers_.resize(other.numbers_.size(), 0);
    }
    for (size_t i = 0; i < other.numbers_.size(); ++i) {
      numbers_[i] = std::max(numbers_[i], other.numbers_[i]);
    }
  }
  bool Covers(const VectorClock& other) const {
    for (size_t i = 0; i < other.numbers_.size(); ++i) {
      if (other.numbers_[i] > Get(i)) return false;
    }
    return true;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::vector<uint64_t> numbers_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CLOCKS_H_
