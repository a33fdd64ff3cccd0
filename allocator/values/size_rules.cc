// SPDX-License-Identifier: Apache-2.0
#include "allocator/values/size_rules.h"

#include <algorithm>
#include <bit>

namespace stratalloc {

Bytes LargeHandleBytes(Bytes capacity, Bytes host_budget, Bytes disk_budget,
                       Bytes granularity) {
  constexpr Bytes kLeast = 2 * kMiB;
  Bytes bytes = std::clamp(capacity / 256, kLeast, 32 * kMiB);
  for (const Bytes budget : {host_budget, disk_budget}) {
    if (budget < kLeast) continue;
    bytes = std::min(bytes, std::max(budget / 4, kLeast));
  }
  return RoundUp(std::bit_floor(bytes), granularity);
}

}  // namespace stratalloc
