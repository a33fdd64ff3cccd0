// SPDX-License-Identifier: Apache-2.0
// What happened, in 48 bytes: the one vocabulary of the event rings, of the
// file that outlives its process and of recordings. Plain values; the bytes are
// the file's, little endian, and a number here never changes its meaning.
//
// Which fields an event has says the table in README.md of this room; the
// others are 0.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_EVENT_H_
#define STRATALLOC_ALLOCATOR_EVENTS_EVENT_H_

#include <cstdint>
#include <type_traits>

namespace stratalloc {

// The first nine are torch's TraceEntry actions
// (allocator/values/trace_event.h).
enum class EventKind : std::uint8_t {
  kAlloc = 0,
  kFreeRequested = 1,
  kFreeCompleted = 2,
  kSegmentAlloc = 3,
  kSegmentFree = 4,
  kSegmentMap = 5,
  kSegmentUnmap = 6,
  kSnapshot = 7,
  kOutOfMemory = 8,
  kScopeEnter = 9,
  kScopeLeave = 10,
  kFreedAway = 11,
  kMove = 12,
  kStall = 13,
  kLate = 14,
  kMark = 15,
  kTotals = 16,
  kRelabel = 17,
  kThread = 18,
  kDropped = 19,
  kFrameEnd = 20,
};
inline constexpr int kEventKinds = 21;

// Of an event.
inline constexpr std::uint8_t kEventEvicted = 1;
inline constexpr std::uint8_t kEventRestored = 2;
inline constexpr std::uint8_t kEventRecomputes = 4;
inline constexpr std::uint8_t kEventBackward = 8;
inline constexpr std::uint8_t kEventInFrame = 16;

struct Event {
  std::uint64_t ticks = 0;  // base/ticks.h
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t aux = 0;
  std::uint32_t scope = 0;
  std::uint16_t site = 0;    // a line, or a call on a stack: README.md
  std::uint16_t beyond = 0;  // see SetSize
  std::uint32_t stamp = 0;   // the ring's: its number in the ring, plus 1
  EventKind kind = EventKind::kAlloc;
  std::uint8_t category = 0;
  std::uint8_t device = 0;
  std::uint8_t flags = 0;

  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 48 && std::is_trivially_copyable_v<Event>);

// aux of events of blocks, segments and totals: the order of the device's
// events, which its lock makes exact where two cores' clocks need not agree,
// and the pool.
inline constexpr int kPoolBits = 16;
constexpr std::uint64_t OrderAndPool(std::uint64_t order, std::uint16_t pool) {
  return order << kPoolBits | pool;
}
constexpr std::uint64_t OrderOf(std::uint64_t aux) { return aux >> kPoolBits; }
constexpr std::uint16_t PoolOf(std::uint64_t aux) {
  return static_cast<std::uint16_t>(aux);
}
constexpr bool HasOrder(EventKind kind) {
  return kind <= EventKind::kOutOfMemory || kind == EventKind::kRelabel ||
         kind == EventKind::kTotals || kind == EventKind::kFreedAway ||
         kind == EventKind::kFrameEnd;
}

// A block's size, which is `bytes`, what was asked for, rounded up to 512, and
// `beyond` times 512 more; 0 where it is too far beyond.
inline constexpr std::uint64_t kSizeUnit = 512;
inline constexpr std::uint16_t kTooFarBeyond = 0xffff;
constexpr std::uint64_t Rounded(std::uint64_t bytes) {
  return (bytes + kSizeUnit - 1) / kSizeUnit * kSizeUnit;
}
constexpr void SetSize(Event& event, std::uint64_t size) {
  const std::uint64_t rounded = Rounded(event.bytes);
  const bool fits = size >= rounded && size % kSizeUnit == 0 &&
                    (size - rounded) / kSizeUnit < kTooFarBeyond;
  event.beyond = fits ? static_cast<std::uint16_t>((size - rounded) / kSizeUnit)
                      : kTooFarBeyond;
}
constexpr std::uint64_t SizeOf(const Event& event) {
  return event.beyond == kTooFarBeyond
             ? 0
             : Rounded(event.bytes) + event.beyond * kSizeUnit;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_EVENT_H_
