// SPDX-License-Identifier: Apache-2.0
// The memory of a process's event rings and of the names its events speak of:
// anonymous, or a file that outlives the process, a SIGKILL included, since
// what is stored to a mapped file is the kernel's at once.
//
// Layout, all of it little endian, offsets in the head: the head (one page);
// the rings, each a Head and its events; the names, one after the other, as
// many bytes as `names_used` says. Rings that nobody took are a hole: no
// memory and no disk.
//
// Thread-safety: AddName by any thread (kInterner lock inside, leaf); the rings
// see event_ring.h. Lifetime: made once and never unmapped, since a thread may
// be in the middle of a Write at any time.
// Failure: Make() says why there is none. A name that has no room any more is
// counted and left out; so is an event of a thread that found no ring.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_EVENT_AREA_H_
#define STRATALLOC_ALLOCATOR_EVENTS_EVENT_AREA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"
#include "allocator/base/result.h"
#include "allocator/events/event_ring.h"

namespace stratalloc {

// What a name belongs to; `id` is what events have in the field.
enum class NameKind : std::uint32_t {
  kScope = 1,   // Event::scope; of a mark's event, too
  kSite = 2,    // Event::site: "file:line function"
  kPool = 3,    // PoolOf(aux): "device stream owner owner", in numbers
  kThread = 4,  // the kernel's number: what the thread is called
  kMark = 5,    // Event::scope of a mark
  // Event::site, too, from where those of kSite end: a call of a stack, "caller
  // line file:line function", the first two being sites, 0 for none
  kCall = 6,
};

struct EventAreaHead {
  static constexpr char kMagic[9] = "STRATRNG";
  static constexpr std::uint32_t kVersion = 1;

  char magic[8];
  std::uint32_t version, head_bytes;
  std::uint64_t area_bytes;
  std::uint64_t rings, ring_capacity, rings_offset, ring_stride;
  std::uint64_t names_offset, names_bytes;
  // The clock: ticks at `unix_ns`, and how long one takes, in 2^-32 ns, as it
  // was measured from the process's beginning to UpdateClock(). Its error, by
  // some 100 ns of the two looks, is 100 ns / that time: of a process that was
  // killed an hour later, 4 ms if the clock was last brought up to date in its
  // first 0.1 s, 6 us if that was after a minute.
  std::int64_t unix_ns;
  std::uint64_t ticks;
  std::atomic<std::uint64_t> tick_length;
  std::uint64_t process;
  std::atomic<std::uint64_t> rings_used, names_used;
  // names_lost: of what has no name, or no number, because none was left.
  std::atomic<std::uint64_t> events_lost, names_lost;
  std::uint64_t redacted;  // what is made of it has no names
  // Mallocs whose line is known alone, since no number was left for a call.
  std::atomic<std::uint64_t> stacks_lost;
};

// Before each name; the text follows, filled up to 8 bytes.
struct EventName {
  NameKind kind;
  std::uint32_t id;
  std::uint32_t bytes;
  std::uint32_t check;  // see CheckOf

  // A name that is torn or was never written does not fit its own.
  static std::uint32_t CheckOf(NameKind kind, std::uint32_t id,
                               std::string_view text);
};

struct EventAreaOptions {
  std::uint64_t rings = 64;  // threads at a time
  // Events of each; a power of two.
  std::uint64_t ring_capacity = std::uint64_t{1} << 17;
  Bytes names_bytes = Bytes{16} << 20;
  std::string file;  // "": anonymous memory
  bool redacted = false;
};

class EventArea {
 public:
  // kInvalidArgument for options that no area can have, else what the file
  // system said. The file is made anew, readable by its owner alone.
  static Result<EventArea*> Make(const EventAreaOptions& options);

  EventArea(const EventArea&) = delete;
  EventArea& operator=(const EventArea&) = delete;

  EventAreaHead& head() { return head_; }
  const std::string& file() const { return file_; }
  EventRing ring(std::uint64_t index) const;
  // The disk has room for the ring from now on, or has none: what is stored
  // beyond a full disk's room is a SIGBUS. Before anybody touches the ring.
  bool Reserve(std::uint64_t index);

  // Same kind and id again: the last one counts. This and MarkOf bring the
  // clock up to date, as whoever reads what a killed process left cannot: names
  // come while a program warms up, marks with each of its steps.
  void AddName(NameKind kind, std::uint32_t id, std::string_view text)
      EXCLUDES(mutex_);
  // The number of a mark of that name, named; the same one for the same name as
  // long as `kMostMarks` are known. Marks have half of the room for names at
  // most: a program may make as many as it likes, and layers that come later
  // need theirs.
  static constexpr std::size_t kMostMarks = 4096;
  std::uint32_t MarkOf(std::string_view text) EXCLUDES(mutex_);
  // What a tick is by now. Whoever reads the ticks of a living process asks for
  // it first.
  void UpdateClock();

 private:
  EventArea(void* memory, int descriptor, std::string file);
  void AddNameLocked(NameKind kind, std::uint32_t id, std::string_view text)
      REQUIRES(mutex_);

  EventAreaHead& head_;
  const int descriptor_;  // -1: anonymous
  const std::string file_;
  Mutex mutex_{LockRank::kInterner};
  std::unordered_map<std::string, std::uint32_t> marks_ GUARDED_BY(mutex_);
  std::uint32_t last_mark_ GUARDED_BY(mutex_) = 0;
  std::uint64_t marks_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_EVENT_AREA_H_
