// SPDX-License-Identifier: Apache-2.0
#include "allocator/streams/event_pool.h"

namespace stratalloc {

EventPool::~EventPool() {
  for (EventId event : events_) device_.DestroyEvent(event);
  for (const auto& [device, events] : elsewhere_) {
    for (EventId event : events) device_.DestroyEvent(event);
  }
}

std::vector<EventId>& EventPool::Of(StreamId stream) {
  return IsElsewhere(stream) ? elsewhere_[DeviceElsewhere(stream)] : events_;
}

EventId EventPool::Take(StreamId stream) {
  std::vector<EventId>& unused = Of(stream);
  if (unused.empty()) {
    const Result<EventId> event = device_.CreateEvent(stream);
    return event ? *event : kNoEvent;
  }
  const EventId event = unused.back();
  unused.pop_back();
  return event;
}

EventId EventPool::TakeUnused() {
  return events_.empty() ? kNoEvent : Take(kDefaultStream);
}

void EventPool::Put(EventId event, StreamId stream) {
  Of(stream).push_back(event);
}

}  // namespace stratalloc
