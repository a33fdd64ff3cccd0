// SPDX-License-Identifier: Apache-2.0
// How sizes become block sizes and pools. The values are native's, so that
// block counts, rounded sizes and small/large statistics agree with it.
#ifndef STRATALLOC_ALLOCATOR_VALUES_SIZE_RULES_H_
#define STRATALLOC_ALLOCATOR_VALUES_SIZE_RULES_H_

#include "allocator/base/bytes.h"

namespace stratalloc {

inline constexpr Bytes kMinBlockSize = 512;  // also the alignment
inline constexpr Bytes kSmallSize = kMiB;    // <= goes to the small pool
// A request this large can only be a mistake (native refuses it too).
inline constexpr Bytes kMaxRequest = Bytes{1} << 60;

enum class PoolKind : int { kSmall = 0, kLarge = 1 };
inline constexpr int kPoolKinds = 2;

constexpr Bytes RoundSize(Bytes requested) {
  return requested < kMinBlockSize ? kMinBlockSize
                                   : RoundUp(requested, kMinBlockSize);
}
constexpr PoolKind KindOf(Bytes rounded) {
  return rounded <= kSmallSize ? PoolKind::kSmall : PoolKind::kLarge;
}

// The large handle: capacity / 256 as a power of two within 2..32 MiB, never
// above a quarter of a budget (so that several fit on that tier) unless that
// has no room for the smallest handle and is no tier, never below the driver's
// granularity. 64 MiB -> 2 MiB; 24 GiB -> 32 MiB.
Bytes LargeHandleBytes(Bytes capacity, Bytes host_budget, Bytes disk_budget,
                       Bytes granularity);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_SIZE_RULES_H_
