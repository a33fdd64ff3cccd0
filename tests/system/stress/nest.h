// SPDX-License-Identifier: Apache-2.0
// What the operators of one thread need on the device at once: the handles of
// their operands, and at most so many for what they allocate inside. A handle
// stays or goes whole, and all of these are there until the outermost operator
// returns.
//
// Thread-safety: one thread's, by value.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_NEST_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_NEST_H_

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "allocator/device_allocator.h"
#include "tests/system/stress/shadow.h"
#include "tiering/engine/engine.h"

namespace stratalloc {

class Nest {
 public:
  // Where handles are of one size, as on a small device: the most of them that
  // a block of so many bytes, which is not there yet, may lie in.
  static Bytes AtMost(Bytes bytes);

  // Bytes that `accesses` need beside what is in the nest.
  Bytes Needs(DeviceAllocator& device, std::span<const Access> accesses) const;
  void Add(DeviceAllocator& device, std::span<const Access> accesses);
  void AddBlock(Bytes bytes) { bytes_ += AtMost(bytes); }
  Bytes bytes() const { return bytes_; }

  // Open operators, the outermost first, and what they allocated.
  struct Operator {
    StreamId stream;
    std::vector<Shadow*> operands;
    std::vector<bool> written;
  };
  std::vector<Operator> open;
  std::vector<std::unique_ptr<Shadow>> made;
  Bytes room = 0;
  Bytes transient = 0;  // AtMost of the transient blocks in `made`

 private:
  std::set<Address> handles_;
  Bytes bytes_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_NEST_H_
