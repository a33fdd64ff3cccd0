// SPDX-License-Identifier: Apache-2.0
#include "allocator/events/event_ring.h"

#include <algorithm>
#include <cstring>

namespace stratalloc {

std::uint64_t EventRing::Read(std::uint64_t from, std::vector<Event>& to,
                              std::size_t* whole_from) const {
  const std::uint64_t end = written();
  std::size_t whole = to.size();
  if (whole_from != nullptr) *whole_from = whole;
  if (from >= end) return 0;
  const std::uint64_t begin = end - from > capacity() ? end - capacity() : from;
  const std::size_t before = to.size();
  for (std::uint64_t number = begin; number < end; ++number) {
    const Word* const place = PlaceOf(number);
    std::uint64_t words[kWords];
    const std::uint64_t last =
        place[kWords - 1].load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kWords - 1; ++i) {
      words[i] = place[i].load(std::memory_order_relaxed);
    }
    // The stamp again after the words, not before: an event that was
    // overwritten meanwhile has another one, or none.
    std::atomic_thread_fence(std::memory_order_acquire);
    words[kWords - 1] = place[kWords - 1].load(std::memory_order_relaxed);
    Event event;
    std::memcpy(&event, words, sizeof(event));
    if (words[kWords - 1] == last &&
        event.stamp == static_cast<std::uint32_t>(number + 1)) {
      to.push_back(event);
    } else {
      whole = to.size();  // the writer was here: a gap behind what was read
    }
  }
  if (whole_from != nullptr) *whole_from = whole;
  return end - from - (to.size() - before);
}

}  // namespace stratalloc
