// SPDX-License-Identifier: Apache-2.0
// Whether a handle is among what a caller named. Internal to this room.
#ifndef STRATALLOC_TIERING_ENGINE_OVERLAPS_H_
#define STRATALLOC_TIERING_ENGINE_OVERLAPS_H_

#include <algorithm>
#include <span>

#include "allocator/memory/handle_table.h"
#include "tiering/engine/access.h"

namespace stratalloc {

// No ranges are all there is.
inline bool Overlaps(HandleRef handle, std::span<const AddressRange> ranges) {
  if (ranges.empty()) return true;
  const Address lo = handle.address(), hi = lo + handle.bytes();
  return std::any_of(ranges.begin(), ranges.end(), [&](const AddressRange& r) {
    return r.address < hi && lo < r.address + r.bytes;
  });
}

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_OVERLAPS_H_
