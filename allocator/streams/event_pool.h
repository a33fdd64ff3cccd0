// SPDX-License-Identifier: Apache-2.0
// Events of one device that nobody uses now: creating one costs more than
// recording it. Those for streams of other devices are kept apart, since an
// event can be recorded on its own device only. None is destroyed before the
// pool is, because a thread may still wait for one that was put back: waiting
// for its next record is longer than needed, never wrong.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Never fails: kNoEvent if there is none to be had.
#ifndef STRATALLOC_ALLOCATOR_STREAMS_EVENT_POOL_H_
#define STRATALLOC_ALLOCATOR_STREAMS_EVENT_POOL_H_

#include <map>
#include <vector>

#include "allocator/cuda/device.h"

namespace stratalloc {

class EventPool {
 public:
  explicit EventPool(const Device& device) : device_(device) {}
  ~EventPool();  // for tests
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // For a record on `stream`; a new one if all are in use.
  EventId Take(StreamId stream);
  // For a record on a stream of the device; kNoEvent if all are in use, so that
  // the caller makes one without the lock.
  EventId TakeUnused();
  void Put(EventId event, StreamId stream);

 private:
  std::vector<EventId>& Of(StreamId stream);

  const Device& device_;
  std::vector<EventId> events_;
  std::map<DeviceIndex, std::vector<EventId>> elsewhere_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STREAMS_EVENT_POOL_H_
