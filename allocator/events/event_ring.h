// SPDX-License-Identifier: Apache-2.0
// The last events of one thread, in memory that may be a file's: one writer,
// the oldest overwritten first, readers at any time. A reader is never waited
// for and takes no lock; what was overwritten while it read is left out, and
// counted as lost.
//
// Thread-safety: Write by one thread at a time (the ring's owner), the rest by
// any. Every word is atomic, so that a reader may meet a writer.
// Torn events: before an event's words are written its place has the stamp 0,
// and its stamp comes last. A process that is killed in between leaves an event
// without a stamp, and a reader that sees another stamp than the one it expects
// leaves the event out.
// Cost: 7 stores, 4 ns. Failure: none.
// Lifetime: a view; of the area that has its words (event_area.h).
// Equation: the event of number n has stamp n + 1 and lies at n % capacity.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_EVENT_RING_H_
#define STRATALLOC_ALLOCATOR_EVENTS_EVENT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/events/event.h"

namespace stratalloc {

class EventRing {
 public:
  using Word = std::atomic<std::uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 8);
  static constexpr std::size_t kWords = sizeof(Event) / sizeof(Word);

  // What stands before the events, one cache line.
  struct Head {
    Word written;  // events ever
    Word thread;   // the kernel's number of who took it last, 0: nobody yet
    Word unused[6];
  };
  static_assert(sizeof(Head) == 64);

  EventRing() = default;
  // `capacity`: a power of two. Both zero, or a ring of this capacity.
  EventRing(Head* head, Word* words, std::uint64_t capacity)
      : head_(head), words_(words), mask_(capacity - 1) {}

  std::uint64_t capacity() const { return mask_ + 1; }
  Head& head() const { return *head_; }
  std::uint64_t written() const {
    return head_->written.load(std::memory_order_acquire);
  }

  // Its stamp is set here.
  void Write(const Event& event);

  // Events from number `from` on, oldest first, appended to `to`. Returns how
  // many of them were lost: before the first one, and where the writer came by
  // meanwhile, between two. `whole_from`: the place in `to` from which on none
  // is missing.
  std::uint64_t Read(std::uint64_t from, std::vector<Event>& to,
                     std::size_t* whole_from = nullptr) const;

 private:
  Word* PlaceOf(std::uint64_t number) const {
    return words_ + (number & mask_) * kWords;
  }

  Head* head_ = nullptr;
  Word* words_ = nullptr;
  std::uint64_t mask_ = 0;
};

// ---- implementation ---------------------------------------------------------

inline void EventRing::Write(const Event& event) {
  // stamp, kind, category, device and flags.
  constexpr std::size_t kLast = kWords - 1;
  const std::uint64_t number = head_->written.load(std::memory_order_relaxed);
  std::uint64_t words[kWords];
  __builtin_memcpy(words, &event, sizeof(event));
  words[kLast] = (words[kLast] & ~std::uint64_t{0xffffffff}) |
                 static_cast<std::uint32_t>(number + 1);
  Word* const place = PlaceOf(number);
  place[kLast].store(0, std::memory_order_relaxed);
  // A reader that sees one of the words below sees that the stamp went.
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < kLast; ++i) {
    place[i].store(words[i], std::memory_order_relaxed);
  }
  place[kLast].store(words[kLast], std::memory_order_release);
  head_->written.store(number + 1, std::memory_order_release);
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_EVENT_RING_H_
