// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what stays on the device whatever else leaves.
#include "allocator/device_allocator.h"

namespace stratalloc {

Bytes DeviceAllocator::StaysLocked() {
  Bytes stays = 0;
  for (const auto& [base, segment] : segments_) {
    if (segment->region->evictable) continue;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (IsLive(b->state)) stays += b->size;
    }
  }
  ForEachEvictableLocked([&](HandleRef handle) {
    if (handle.entry().pins.load() != 0 &&
        IsOnDevice(handle.entry().state.load())) {
      stays += handle.bytes();
    }
  });
  return stays;
}

}  // namespace stratalloc
