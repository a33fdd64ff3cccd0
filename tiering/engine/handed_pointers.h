// SPDX-License-Identifier: Apache-2.0
// Blocks whose addresses data_ptr() gave away: the newest stay on the device.
//
// Nobody says when such an address is used for the last time, and many are only
// compared. So the promise is best effort: what was handed out lately is
// pinned, the oldest goes when the pinned blocks take more than a share of the
// device, and all go when somebody would be refused otherwise. A program that
// uses an address for longer calls pin().
//
// Thread-safety: all. Takes the device lock under its own; waits for nothing.
// Invariant: `bytes()` is the sum over its pins. Lifetime: the engine's.
#ifndef STRATALLOC_TIERING_ENGINE_HANDED_POINTERS_H_
#define STRATALLOC_TIERING_ENGINE_HANDED_POINTERS_H_

#include <cstddef>
#include <deque>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

class HandedPointers {
 public:
  // Of the device's limit; at least the newest stays, however large.
  static constexpr Bytes kShare = 8;
  // Pins on small blocks cost more memory than the blocks do.
  static constexpr std::size_t kMost = 4096;

  // Is the block of `pin` among them? Else it is the newest from now on, and
  // the pin is this object's to take back.
  void Add(DeviceAllocator& device, const BlockPin& pin, Bytes bytes)
      EXCLUDES(mutex_);
  // Takes back all pins; false: there were none.
  bool LetGo() EXCLUDES(mutex_);
  Bytes bytes() EXCLUDES(mutex_);

 private:
  struct Handed {
    DeviceAllocator* device;
    BlockPin pin;
    Bytes bytes;
  };
  void DropOldestLocked() REQUIRES(mutex_);

  Mutex mutex_{LockRank::kPins};
  std::deque<Handed> handed_ GUARDED_BY(mutex_);
  Bytes bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_HANDED_POINTERS_H_
