// SPDX-License-Identifier: Apache-2.0
// When handles that were copied in may be used by everybody: whoever mallocs or
// chooses victims looks, but not while a stream captures, since asking for an
// event would spoil it.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Nothing here can fail. Invariant: SlowReason::kArrivals is set while some
// arrival is outstanding.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_ARRIVALS_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_ARRIVALS_H_

#include "allocator/blocks/residency.h"
#include "allocator/state/slow_reasons.h"
#include "allocator/streams/captures.h"

namespace stratalloc {

class Arrivals {
 public:
  Arrivals(Residency& residency, Captures& captures, SlowReasons& slow)
      : residency_(residency), captures_(captures), slow_(slow) {}

  // Those whose copies are complete are over.
  void Settle() {
    if (!residency_.some_arrive() || captures_.UnderWay()) return;
    residency_.Settle();
    Publish();
  }
  // There may be more or fewer of them: for the fast path.
  void Publish() { slow_.Set(SlowReason::kArrivals, residency_.some_arrive()); }

 private:
  Residency& residency_;
  Captures& captures_;
  SlowReasons& slow_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_ARRIVALS_H_
