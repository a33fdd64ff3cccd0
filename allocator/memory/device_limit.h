// SPDX-License-Identifier: Apache-2.0
// How much memory one device's allocator may have: the least of what the
// program set (gpu_limit, the memory fraction) and what the card has for us
// beside all others (card_room.h). `ours` in the calls below is what the driver
// gave us, used or not.
//
// Thread-safety: the caller's lock. Never fails: what the driver does not say
// changes nothing. Lifetime: the device's. Invariant: Now() <= Most() <=
// Allowed().
#ifndef STRATALLOC_ALLOCATOR_MEMORY_DEVICE_LIMIT_H_
#define STRATALLOC_ALLOCATOR_MEMORY_DEVICE_LIMIT_H_

#include <algorithm>

#include "allocator/base/bytes.h"
#include "allocator/cuda/device.h"
#include "allocator/memory/card_room.h"
#include "allocator/state/settings.h"

namespace stratalloc {

class DeviceLimit {
 public:
  // `gpu_limit` 0: the card's capacity.
  DeviceLimit(const Device& device, Bytes capacity, Bytes gpu_limit)
      : device_(device),
        capacity_(capacity),
        gpu_limit_(gpu_limit),
        card_(CardRoom::HeadroomOf(capacity, device.granularity())) {}

  // The fraction is of gpu_limit where one is set, which stands for a smaller
  // card: a program takes it of what torch.cuda.mem_get_info() says is there.
  static Bytes Of(Bytes capacity, Bytes gpu_limit, double fraction);

  // What the program set.
  // The smaller of the fraction that was set and the one that rejects.
  Bytes Allowed() const {
    const double share = Settings::Get().rejection_share();
    return Share(share > 0 ? std::min(share, fraction_) : fraction_);
  }
  Bytes Now() const { return std::min(Allowed(), card_.Room()); }
  // The same with the headroom: no larger request can be served.
  Bytes Most() const { return std::min(Allowed(), card_.Most()); }

  // Of what a fraction is of.
  Bytes Share(double fraction) const {
    return Of(capacity_, gpu_limit_, fraction);
  }
  double fraction() const { return fraction_; }
  void SetFraction(double fraction) { fraction_ = fraction; }

  // Memory is short: looks at what the card has for us, if that is due, which
  // it is after the driver has refused memory. These three are true if they
  // looked, so that the limit may have moved.
  bool Follow(bool refused, Bytes ours);
  bool Look(Bytes ours);
  // Somebody would be refused for the limit: takes the headroom, and looks
  // whether others gave memory back since the last look. `raised`: the limit is
  // higher now.
  bool Raise(Bytes ours, bool* raised);
  // `fits`: `bytes` are not more than Most(), after a look at the card if they
  // are.
  bool CouldHold(Bytes bytes, Bytes ours, bool* fits);

 private:
  const Device& device_;
  const Bytes capacity_;
  const Bytes gpu_limit_;
  double fraction_ = 1.0;
  CardRoom card_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MEMORY_DEVICE_LIMIT_H_
