// SPDX-License-Identifier: Apache-2.0
// What tests of this room do in tiering's place: handles leave and return, by
// the steps of residency.h. No bytes are copied.
#ifndef STRATALLOC_ALLOCATOR_MOVING_TEST_H_
#define STRATALLOC_ALLOCATOR_MOVING_TEST_H_

#include <gtest/gtest.h>

#include <vector>

#include "allocator/device_allocator.h"

namespace stratalloc {

inline HandleRef HandleAt(DeviceAllocator& allocator, Address address) {
  HandleRegion* const region = allocator.table().RegionOf(address);
  return {region, region->IndexOf(address)};
}

inline std::vector<Departure> MarkLeaving(DeviceAllocator& allocator,
                                          HandleRef handle) {
  return allocator.MarkLeaving(allocator.ChooseLeaving({&handle, 1}));
}

// As an eviction that finds nothing may leave after all.
inline void TakeBack(DeviceAllocator& allocator,
                     std::vector<Departure> marked) {
  allocator.BeginEvict(&marked, 0, {}, /*may_leave=*/false);
}

inline bool MayLeave(DeviceAllocator& allocator, Address address) {
  std::vector<Departure> marked =
      MarkLeaving(allocator, HandleAt(allocator, address));
  const bool leaves = !marked.empty();
  TakeBack(allocator, std::move(marked));
  return leaves;
}

inline void EvictToHost(DeviceAllocator& allocator, HandleRef handle) {
  std::vector<Departure> leaving = MarkLeaving(allocator, handle);
  allocator.BeginEvict(&leaving, /*users=*/~std::uint64_t{0}, {},
                       /*may_leave=*/true);
  ASSERT_EQ(leaving.size(), 1u);
  allocator.EndFencing();
  allocator.CommitEvict(&leaving,
                        MoveEvents(DeviceIndex{0}, allocator.moves()));
  ASSERT_EQ(leaving[0].left, Departure::Left::kAway);
}

// `event` completes after the copies; kNoEvent: they are complete.
inline void Restore(DeviceAllocator& allocator, HandleRef handle,
                    PhysicalMemory* memory, EventId event) {
  ASSERT_EQ(allocator.BeginRestore({&handle, 1}, {&memory, 1}).value_or(0), 1u);
  allocator.CommitRestore({handle}, event);
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MOVING_TEST_H_
