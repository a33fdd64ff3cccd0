// SPDX-License-Identifier: Apache-2.0
// How much of a list operator's lists should be on the device at once: whole
// if everything is there already, else slices that leave most of the device
// free, so that what one slice used or made can leave while the next comes.
//
// The answers are advice: nothing is pinned, and other threads may change
// what they were taken from. Who enters afterwards learns what really fits.
// Thread-safety: any thread, without the device lock.
#ifndef STRATALLOC_TIERING_ENGINE_LIST_ROOM_H_
#define STRATALLOC_TIERING_ENGINE_LIST_ROOM_H_

#include <cstddef>
#include <span>

#include "allocator/device_allocator.h"
#include "tiering/engine/access.h"

namespace stratalloc {

// Is nothing away from the device, with room for `results` in it? Most jobs
// fit, and need no look at what an operator touches.
bool NothingAway(DeviceAllocator& device, Bytes results);

// Are all these bytes on the device, with room for `results` beside them?
bool FitsAsItIs(DeviceAllocator& device, std::span<const Access> accesses,
                Bytes results);

// The element that takes most, if that is more than what could leave now would
// free: it is refused whatever the other slices do, unless other threads make
// room. Else the number of elements.
std::size_t Doubtful(DeviceAllocator& device, const ListElements& elements);

// Elements of the next slice, from `first` on; at least 1.
std::size_t NextSlice(DeviceAllocator& device, const ListElements& elements,
                      std::size_t first);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_LIST_ROOM_H_
