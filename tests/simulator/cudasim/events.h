// SPDX-License-Identifier: Apache-2.0
//
// events.h: an event remembers the past of a stream at the moment it was
// recorded. One that was never recorded counts as complete, as in CUDA.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_EVENTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_EVENTS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tests/simulator/cudasim/clocks.h"
#include "tests/simulator/cudasim/shared_file.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct GraphNode;  // graph.h

struct Event {
  int device = 0;
  unsigned flags = 0;
  bool recorded = false;
  VectorClock clock;
  uint64_t capture = 0;              // last recorded in this capture
  std::vector<GraphNode*> frontier;  // of its stream then
  std::chrono::steady_clock::time_point time;
  int64_t virtual_ns = 0;  // the end of what it stands for
  // Of one shared with other processes (ipc.h): the owner's file, and the
  // entry and id it has there.
  std::shared_ptr<SharedFile> shared_file;
  uint32_t shared_slot = 0;
  uint64_t shared_id = 0;
  bool imported = false;
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
    auto found = events_.find(handle);
    if (found == events_.end()) return kInvalidHandle;
    GiveUpShare(found->second);
    events_.erase(found);
    return kOk;
  }
  // nullptr if no such event is alive.
  Event* Find(uint64_t handle) {
    auto found = events_.find(handle);
    return found == events_.end() ? nullptr : &found->second;
  }
  void ResetVirtualTimes() {
    for (auto& [handle, event] : events_) event.virtual_ns = 0;
  }
  void Clear() {
    for (const auto& [handle, event] : events_) GiveUpShare(event);
    events_.clear();
  }
  long live() const { return static_cast<long>(events_.size()); }
  const std::unordered_map<uint64_t, Event>& all() const { return events_; }

 private:
  static void GiveUpShare(const Event& event) {
    if (event.shared_file == nullptr || event.imported) return;
    event.shared_file->GiveBackEvent(static_cast<int>(event.shared_slot));
  }

  std::unordered_map<uint64_t, Event> events_;
  uint64_t next_handle_ = 0xE70000000010;  // never used again
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_EVENTS_H_
