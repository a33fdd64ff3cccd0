// SPDX-License-Identifier: Apache-2.0
// Whether events are recorded, and the ring of each thread: what every room
// calls when something happened. Nothing is recorded until Start().
//
// Thread-safety: Record by any thread, under any lock; each writes a ring of
// its own, which it takes with its first event (kInterner lock, leaf) and gives
// back when it ends. The next new thread takes the ring that was given back
// first, when none is left that was never used: what the last thread wrote
// stays until it is overwritten.
// Cost: while nothing is recorded, one relaxed load; else see event_ring.h and
// base/ticks.h.
// Failure: Start() says why not. An event of a thread that finds no ring is
// counted (EventAreaHead::events_lost).
// Fork: whoever calls Start() sees to it that AbandonAfterFork() is called in
// the child, which then records nothing: its parent's file is not its own. It
// may Start() anew.
// Lifetime: the process's; the area is made by the first Start() and stays.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_EVENT_RECORDER_H_
#define STRATALLOC_ALLOCATOR_EVENTS_EVENT_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "allocator/base/result.h"
#include "allocator/base/thread_local.h"
#include "allocator/base/ticks.h"
#include "allocator/events/event.h"
#include "allocator/events/event_area.h"

namespace stratalloc {

class EventRecorder {
 public:
  static bool on() { return on_.load(std::memory_order_relaxed); }

  // Records from now on. The first call makes the area, of default options
  // where none are given. Later ones record there, too, and if they ask for
  // another file or size that is kInvalidArgument, and what was recorded so far
  // goes on.
  static Status Start(const std::optional<EventAreaOptions>& options);
  // What was recorded stays; Start() goes on in the same rings.
  static void Stop();
  // In a forked child, before anything else there: as if nothing had begun.
  static void AbandonAfterFork();

  // Its ticks are set here. REQUIRES: somebody asked on().
  static void Record(Event& event) {
    event.ticks = NowTicks();
    if (__builtin_expect(!own_.taken, 0) && !TakeRing()) return;
    own_.ring.Write(event);
  }
  // Does nothing while there is no area.
  static void Name(NameKind kind, std::uint32_t id, std::string_view text);
  // Nor does this (EventAreaHead::stacks_lost).
  static void CountLostStack();

  // A moment that has a name.
  static void Mark(std::string_view text);
  // The number of a pool that has none yet, of the process, as the rings are;
  // 0 if none is left, which is a name that is lost. Somebody asked on().
  static std::uint16_t NamePool(std::string_view text);

  // nullptr before the first Start().
  static EventArea* area() { return area_.load(std::memory_order_acquire); }

  // What was recorded so far, without reading any of it; zeros before the first
  // Start(). The first three only grow.
  struct Counts {
    std::uint64_t written = 0;
    std::uint64_t overwritten = 0;  // of these
    std::uint64_t without_ring = 0;
    std::uint64_t names_lost = 0, stacks_lost = 0;
  };
  static Counts Counted();

  // Per ring how many events were ever written: a moment to read from.
  static std::vector<std::uint64_t> Now();
  struct Reading {
    struct Ring {
      std::uint64_t thread = 0;
      std::vector<Event> events;
      std::uint64_t lost = 0;
      std::size_t whole_from = 0;  // EventRing::Read
    };
    std::vector<Ring> rings;
    std::uint64_t events_lost = 0, names_lost = 0;
  };
  // Of every ring what was written since, as far as it is still there.
  static Reading Read(const std::vector<std::uint64_t>& since);

 private:
  struct Own {
    EventRing ring;
    std::uint64_t index = 0;
    bool taken = false;
  };
  static bool TakeRing();
  static void GiveBack(void* own);

  static constinit std::atomic<bool> on_;
  static constinit std::atomic<EventArea*> area_;
  static STRATALLOC_FAST_THREAD_LOCAL Own own_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_EVENT_RECORDER_H_
