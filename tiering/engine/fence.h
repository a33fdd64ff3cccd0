// SPDX-License-Identifier: Apache-2.0
// Events on the streams that used some handles, recorded when these were
// chosen: the handles may leave once they are complete. Where no event can be
// had, Record waits.
//
// Thread-safety: every method, from any thread. Locks: the device lock, for the
// pool of events. Lifetime: shared by the handles that wait for it; before the
// device's end.
// Errors: kUnsupported where a stream captures; else as the driver does.
#ifndef STRATALLOC_TIERING_ENGINE_FENCE_H_
#define STRATALLOC_TIERING_ENGINE_FENCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/device_allocator.h"
#include "tiering/engine/tiered_device.h"

namespace stratalloc {

inline constexpr char kCapturedNow[] =
    "nothing leaves while a CUDA graph is captured";

class Fence {
 public:
  // `streams` of the device's StreamTable. `may_wait_for`: those that were
  // asked whether they capture. REQUIRES: the caller is between BeginFencing
  // and EndFencing, of the other devices too if a graph's streams are named.
  static Result<std::shared_ptr<const Fence>> Record(
      const DeviceList& all, DeviceAllocator& device, std::uint64_t streams,
      std::uint64_t may_wait_for);
  // Of all that is enqueued on `stream`, which is ours and captures nothing.
  static Result<std::shared_ptr<const Fence>> After(DeviceAllocator& device,
                                                    StreamId stream);
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  // Never waits. An error of Wait is every later answer: a thread whose wait
  // fails would else look, and wait again, for ever.
  Result<bool> IsDone() const;
  Status Wait() const;

 private:
  explicit Fence(DeviceAllocator& device) : device_(device) {}
  // No event can be had: waits.
  Status RecordOn(StreamId stream);

  DeviceAllocator& device_;
  std::vector<EventId> events_;
  // Was waited for, whatever a query answers.
  mutable std::atomic<bool> done_{false};
  mutable std::atomic<std::shared_ptr<const Error>> failed_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_FENCE_H_
