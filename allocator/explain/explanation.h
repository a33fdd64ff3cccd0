// SPDX-License-Identifier: Apache-2.0
// Would a request be served, after what, and if not, what would help: each step
// was tried on a copy of the block heap (heap_copy.h) before it is said here.
//
// Plain values. Of the moment when the device lock was held: other threads and
// other processes go on. `certain` is false where somebody else has the last
// word: `doubt` says who.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_EXPLANATION_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_EXPLANATION_H_

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/values/views.h"

namespace stratalloc {

// The first step of the ladder (ladder.cc) after which it fits.
enum class ServedBy : unsigned char {
  kNow,       // what is free, or may grow
  kWaiting,   // other streams' work, which may use what was freed
  kEviction,  // bytes leave
  kHeadroom,  // the same, and what is left to others on the card (card_room.h)
  kNothing,
};
const char* ServedByName(ServedBy by);  // "now", "waiting", ...

// Who has the last word.
enum class Doubt : unsigned char {
  kNone,
  kDriver,   // about memory that it places itself (unmanaged_segments.h)
  kSource,   // the program's own allocator, of a MemPool
  kTiers,    // about room for what is evicted
  kCapture,  // which ends
};
// "the driver, ...": a clause for people; "" of kNone.
const char* DoubtText(Doubt doubt);

struct Explanation {
  Bytes requested = 0;
  Bytes size = 0;   // of what is asked for, rounded
  Bytes block = 0;  // of the block that would be handed out; 0 of kNothing
  ServedBy by = ServedBy::kNothing;
  Doubt doubt = Doubt::kNone;
  bool certain() const { return doubt == Doubt::kNone; }
  // Handles that would leave for it, also in vain; and of everything on the
  // device, what may.
  Bytes leaves = 0;
  Bytes may_leave = 0;
  // Reclaimer::RoomBelow; or, where rules are in the way, what there is for
  // what leaves.
  Bytes room_below = 0;
  // kNothing: what is lacking with all that done.
  Bytes missing = 0;
  // kNothing: with `missing` more in gpu_limit and the memory fraction it would
  // be served, and the card has it.
  bool limit_helps = false;
  // kNothing: blocks, the fewest bytes per handle first, whose end would serve
  // it; none if those are as many bytes as are missing, or more, or more than
  // 64 blocks.
  std::vector<BlockView> frees;
  // How often the whole copy was searched for a place to say all that: of
  // kNothing, at most once per block in the longest list, and per eviction.
  std::size_t searches = 0;

  Bytes freed_bytes() const;
  bool has_room() const { return leaves <= room_below; }
  // One sentence that says what would have served it, for people; "" if there
  // is nothing to say.
  std::string Remedy() const;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_EXPLANATION_H_
