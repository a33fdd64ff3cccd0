// SPDX-License-Identifier: Apache-2.0
// What a device has reserved beside what is allocated, exact, in bytes, by why
// it is not to be had:
//
//   pending     freed while other streams still use it
//   stranded    free, in a handle that something alive keeps
//   releasable  handles that are free as a whole: any request may have them
//   private     free as a whole, but a private pool's
//
// Of the allocated bytes, `rounding` is what nobody asked for. Of the stranded
// ones, `separated` is what one class beside the other costs: the handles that
// the blocks would not need, packed side by side, if a stream's lifetime
// classes shared them.
//
// A hole is one handle with stranded bytes. The oldest block in it is named:
// what came last is likely to go first.
//
// FragmentationOf: the caller holds the device lock, and no bin has a block.
// It looks at every block. Never fails.
// Invariants: allocated + pending + stranded + releasable + in_private_pools =
// reserved; separated <= stranded = sum over holes of free; rounding <=
// allocated.
#ifndef STRATALLOC_ALLOCATOR_HEAP_FRAGMENTATION_H_
#define STRATALLOC_ALLOCATOR_HEAP_FRAGMENTATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/pool.h"
#include "allocator/values/views.h"

namespace stratalloc {

struct Hole {
  PoolKey pool;
  Address address = 0;  // of the handle
  Bytes bytes = 0;      // of the handle
  Bytes free = 0;
  int blocks = 0;      // alive in it
  BlockView oldest{};  // of these
  // Operators that this device has run since it was handed out; nothing counts
  // them without tiering.
  std::uint32_t age = 0;
};

struct Fragmentation {
  Bytes reserved = 0, allocated = 0;
  Bytes rounding = 0;
  Bytes pending = 0;
  Bytes stranded = 0;
  Bytes separated = 0;
  Bytes releasable = 0;
  Bytes in_private_pools = 0;
  // Of the stranded: beside blocks of private pools.
  Bytes stranded_private = 0;
  std::vector<Hole> holes;  // the most free bytes first

  // "1.00 MiB free beside them in their handles, 2.00 MiB cached"; "" if
  // nothing is unallocated.
  std::string ToText() const;
};

// `now`: of the use clock (device_parts.h).
Fragmentation FragmentationOf(const BlockHeap& heap, std::uint32_t now);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_FRAGMENTATION_H_
