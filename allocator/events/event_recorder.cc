// SPDX-License-Identifier: Apache-2.0
#include "allocator/events/event_recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>

#include "allocator/base/mutex.h"

namespace stratalloc {

constinit std::atomic<bool> EventRecorder::on_{false};
constinit std::atomic<EventArea*> EventRecorder::area_{nullptr};
STRATALLOC_FAST_THREAD_LOCAL EventRecorder::Own EventRecorder::own_;

namespace {

struct Rings {
  Mutex mutex{LockRank::kInterner};
  EventAreaOptions options;
  std::deque<std::uint64_t> given_back;  // the one that was first in front
  bool disk_full = false;  // the area's file has no room for another ring
};

// A child of a fork has its own: a thread that it has not may hold the lock.
std::atomic<Rings*>& PlaceOfRings() {
  static std::atomic<Rings*> place{new Rings};
  return place;
}
Rings& AllRings() { return *PlaceOfRings().load(std::memory_order_acquire); }

std::uint64_t ThreadNumber() {
  return static_cast<std::uint64_t>(syscall(SYS_gettid));
}

std::string ThreadName() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

bool Same(const EventAreaOptions& a, const EventAreaOptions& b) {
  return a.rings == b.rings && a.ring_capacity == b.ring_capacity &&
         a.names_bytes == b.names_bytes && a.file == b.file;
}

}  // namespace

Status EventRecorder::Start(const std::optional<EventAreaOptions>& wanted) {
  Rings& rings = AllRings();
  MutexLock lock(rings.mutex);
  if (area() == nullptr) {
    const EventAreaOptions options = wanted.value_or(EventAreaOptions{});
    Result<EventArea*> made = EventArea::Make(options);
    if (!made) return tl::unexpected(made.error());
    rings.options = options;
    area_.store(*made, std::memory_order_release);
  } else if (wanted.has_value() && !Same(*wanted, rings.options)) {
    return Fail(ErrorCode::kInvalidArgument,
                "events are recorded already, in rings of " +
                    std::to_string(rings.options.ring_capacity) + " events" +
                    (rings.options.file.empty() ? std::string()
                                                : " in " + rings.options.file) +
                    ": size and file are set once per process");
  }
  on_.store(true, std::memory_order_relaxed);
  return {};
}

void EventRecorder::Stop() {
  on_.store(false, std::memory_order_relaxed);
  if (EventArea* const made = area()) made->UpdateClock();
}

void EventRecorder::AbandonAfterFork() {
  on_.store(false, std::memory_order_relaxed);
  area_.store(nullptr, std::memory_order_release);
  own_ = {};
  PlaceOfRings().store(new Rings, std::memory_order_release);
}

bool EventRecorder::TakeRing() {
  EventArea* const made = area();
  if (made == nullptr) return false;
  EventAreaHead& head = made->head();
  std::uint64_t index = 0;
  {
    Rings& rings = AllRings();
    MutexLock lock(rings.mutex);
    index = head.rings_used.load(std::memory_order_relaxed);
    const bool has_new = index < head.rings && !rings.disk_full;
    if (has_new && made->Reserve(index)) {
      head.rings_used.store(index + 1, std::memory_order_release);
    } else if (!rings.given_back.empty()) {
      index = rings.given_back.front();
      rings.given_back.pop_front();
    } else {
      rings.disk_full |= has_new;
      head.events_lost.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  }
  static ThreadEnd& end = *new ThreadEnd(&EventRecorder::GiveBack);
  own_ = {made->ring(index), index, true};
  EventRing::Head& mine = own_.ring.head();
  const std::uint64_t before = mine.thread.load(std::memory_order_relaxed);
  mine.thread.store(ThreadNumber(), std::memory_order_release);
  end.Await(&own_);
  Event begins;
  begins.kind = EventKind::kThread;
  begins.ticks = NowTicks();
  begins.address = ThreadNumber();
  begins.bytes = before;
  own_.ring.Write(begins);
  made->AddName(NameKind::kThread, static_cast<std::uint32_t>(ThreadNumber()),
                ThreadName());
  return true;
}

void EventRecorder::GiveBack(void* own) {
  Own& mine = *static_cast<Own*>(own);
  if (!mine.taken) return;
  mine.taken = false;
  Rings& rings = AllRings();
  MutexLock lock(rings.mutex);
  rings.given_back.push_back(mine.index);
}

void EventRecorder::Name(NameKind kind, std::uint32_t id,
                         std::string_view text) {
  if (EventArea* const made = area()) made->AddName(kind, id, text);
}

void EventRecorder::Mark(std::string_view text) {
  EventArea* const made = area();
  if (!on() || made == nullptr) return;
  Event event;
  event.kind = EventKind::kMark;
  event.scope = made->MarkOf(text);
  Record(event);
}

std::uint16_t EventRecorder::NamePool(std::string_view text) {
  static std::atomic<std::uint32_t> given{0};
  constexpr std::uint32_t kMost = (1u << kPoolBits) - 1;
  const std::uint32_t number =
      given.fetch_add(1, std::memory_order_relaxed) + 1;
  if (number <= kMost) {
    Name(NameKind::kPool, number, text);
    return static_cast<std::uint16_t>(number);
  }
  if (EventArea* const made = area()) {
    made->head().names_lost.fetch_add(1, std::memory_order_relaxed);
  }
  return 0;
}

void EventRecorder::CountLostStack() {
  if (EventArea* const made = area()) {
    made->head().stacks_lost.fetch_add(1, std::memory_order_relaxed);
  }
}

EventRecorder::Counts EventRecorder::Counted() {
  Counts counts;
  EventArea* const made = area();
  if (made == nullptr) return counts;
  const EventAreaHead& head = made->head();
  const std::uint64_t rings = head.rings_used.load(std::memory_order_acquire);
  for (std::uint64_t i = 0; i < rings; ++i) {
    const EventRing ring = made->ring(i);
    const std::uint64_t written = ring.written();
    counts.written += written;
    counts.overwritten += written - std::min(written, ring.capacity());
  }
  const auto read = [](const std::atomic<std::uint64_t>& number) {
    return number.load(std::memory_order_relaxed);
  };
  counts.without_ring = read(head.events_lost);
  counts.names_lost = read(head.names_lost);
  counts.stacks_lost = read(head.stacks_lost);
  return counts;
}

std::vector<std::uint64_t> EventRecorder::Now() {
  std::vector<std::uint64_t> now;
  if (EventArea* const made = area()) {
    for (std::uint64_t i = 0; i < made->head().rings_used.load(); ++i) {
      now.push_back(made->ring(i).written());
    }
  }
  return now;
}

EventRecorder::Reading EventRecorder::Read(
    const std::vector<std::uint64_t>& since) {
  Reading reading;
  EventArea* const made = area();
  if (made == nullptr) return reading;
  EventAreaHead& head = made->head();
  const std::uint64_t used = head.rings_used.load(std::memory_order_acquire);
  for (std::uint64_t i = 0; i < used; ++i) {
    const EventRing ring = made->ring(i);
    Reading::Ring& read = reading.rings.emplace_back();
    read.thread = ring.head().thread.load(std::memory_order_relaxed);
    read.lost = ring.Read(i < since.size() ? since[i] : 0, read.events,
                          &read.whole_from);
  }
  reading.events_lost = head.events_lost.load(std::memory_order_relaxed);
  reading.names_lost = head.names_lost.load(std::memory_order_relaxed);
  return reading;
}

}  // namespace stratalloc
