// SPDX-License-Identifier: Apache-2.0
// What of a card we may have beside all others: other processes, and the
// driver, which takes memory for a kernel's code when it is first launched and
// for page tables. Until the card has refused us memory, everything, as native:
// a job that fits finds the same card. From then on what we have and what is
// free, less the *headroom* that is left to the others: a card we fill for good
// has no memory for the code of a kernel that is new, and the launch fails.
//
// The headroom is no promise: a request that is refused for its sake gets it
// (Take), and the next look at the card asks for it back.
//
// Thread-safety: the caller's lock. Never fails. Invariant: Room() <= Most().
#ifndef STRATALLOC_ALLOCATOR_MEMORY_CARD_ROOM_H_
#define STRATALLOC_ALLOCATOR_MEMORY_CARD_ROOM_H_

#include "allocator/base/bytes.h"

namespace stratalloc {

class CardRoom {
 public:
  // A 64th of the card and 512 MiB at most, in whole granules: 384 MiB of
  // 24 GiB, 128 MiB of 8 GiB. None of a card without granules: nothing there is
  // evicted.
  static Bytes HeadroomOf(Bytes capacity, Bytes granularity);

  explicit CardRoom(Bytes headroom) : headroom_(headroom) {}

  // Is it time to look? At the first need, when the card has refused memory
  // since or the headroom was taken, and at every 64th need, because others
  // come and go.
  bool IsDue(bool refused);
  // `ours`: what the driver gave us, used or not; `free`: of the card.
  void Look(Bytes ours, Bytes free);

  // What we may have now, and with the headroom.
  Bytes Room() const;
  Bytes Most() const { return most_; }
  // False if there is none to take.
  bool Take();

 private:
  static constexpr int kLookEvery = 64;

  const Bytes headroom_;
  Bytes most_ = ~Bytes{0};
  bool taken_ = false;
  int needs_ = 0;  // since the last look
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MEMORY_CARD_ROOM_H_
