// SPDX-License-Identifier: Apache-2.0
//
// events.h: an event remembers the past of a stream at the moment it was
// recorded. One that was never recorded counts as complete, as in CUDA.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_CUDASIM_EVENTS_H_
#define STRATALLOC_TESTS_CUDASIM_EVENTS_H_

#include <chrono>
#include <cstdint>
#include <unordered_map>

#include "tests/cudasim/clocks.h"
#include "tests/cudasim/status.h"

namespace cudasim {

struct Event {
  int device = 0;
  unsigned flags = 0;
  bool recorded = false;
  VectorClock clock;
  std::chrono::steady_clock::time_point time;
  int64_t virtual_ns = 0;  // the end of what it stands for
};

class Events {
 public:
  uint64_t Create(int device, unsigned flags) {
    const uint64_t handle = next_handle_;
    next_handle_ += 16;
    Event& event = events_[handle];
    event.device = device;
    event.flags = flags;
    return handle;
  }
  Status Destroy(uint64_t handle) {
    return events_.erase(handle) == 1 ? kOk : kInvalidHandle;
  }
  // nullptr if no such event is alive.
  Event* Find(uint64_t handle) {
    auto found = events_.find(handle);
    return found == events_.end() ? nullptr : &found->second;
  }
  void Clear() { events_.clear(); }
  void ResetVirtualTimes() {
    for (auto& [handle, event] : events_) event.virtual_ns = 0;
  }
  long live() const { return static_cast<long>(events_.size()); }
  const std::unordered_map<uint64_t, Event>& all() const { return events_; }

 private:
  std::unordered_map<uint64_t, Event> events_;
  uint64_t next_handle_ = 0xE70000000010;  // never used again
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_EVENTS_H_
