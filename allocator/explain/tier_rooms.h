// SPDX-License-Identifier: Apache-2.0
// What the tiers below have room for, one by one, while handles are tried on a
// copy: a rule may let one go to one of them alone. Together they are
// Reclaimer::RoomBelow(), which is asked first; what may go to either finds
// room there or makes it, since what lies on the host goes down for it.
//
// Plain values. Made without the device lock, as RoomOn is called.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_TIER_ROOMS_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_TIER_ROOMS_H_

#include "allocator/base/bytes.h"
#include "allocator/requests/transactions.h"
#include "allocator/values/reclaimer.h"

namespace stratalloc {

struct TierRooms {
  explicit TierRooms(Reclaimer* reclaimer) {
    if (reclaimer == nullptr) return;
    host = reclaimer->RoomOn(TierId::kHost);
    disk = reclaimer->RoomOn(TierId::kDisk);
  }

  // False: its rule lets it go to one of them alone, which has no room for it.
  bool Take(const EvictableHandle& one) {
    if (one.rule.host == one.rule.disk) return true;
    Bytes& room = one.rule.host ? host : disk;
    if (one.handle.bytes() > room) return false;
    room -= one.handle.bytes();
    return true;
  }

  Bytes host = 0, disk = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_TIER_ROOMS_H_
