// SPDX-License-Identifier: Apache-2.0
// Would a request be served, after what, and if not, what would help: each step
// was tried on a copy of the block heap (heap_copy.h) before it is said here.
//
// Plain values. Of the moment when the device lock was held: other threads and
// other processes go on. `certain` is false where somebody else has the last
// word: the driver about unmanaged memory, the tiers below about room for what
// is evicted, a capture that ends.
#ifndef STRATALLOC_ALLOCATOR_EXPLANATION_H_
#define STRATALLOC_ALLOCATOR_EXPLANATION_H_

#include <algorithm>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/views.h"

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

struct Explanation {
  Bytes requested = 0;
  Bytes size = 0;  // of its block
  ServedBy by = ServedBy::kNothing;
  bool certain = true;
  // kEviction, kHeadroom: handles that have to leave, at least.
  Bytes leaves = 0;
  // Of everything on the device, what may leave; of that, what has a copy below
  // already and takes no room there.
  Bytes may_leave = 0;
  Bytes clean = 0;
  // kNothing: what is lacking with all that done.
  Bytes missing = 0;
  // kNothing: with `missing` more in gpu_limit and the memory fraction it would
  // be served, and the card has it.
  bool limit_helps = false;
  // kNothing: blocks, the fewest bytes per handle first, whose end would serve
  // it; none if those are as many bytes as are missing, or more.
  std::vector<BlockView> frees;

  Bytes freed_bytes() const;
  // Below, for what leaves.
  Bytes room_needed() const { return leaves - std::min(leaves, clean); }
  // One sentence that says what would have served it, for people; "" if there
  // is nothing to say. `below`: bytes that the tiers below had room for.
  std::string Remedy(Bytes below) const;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLANATION_H_
