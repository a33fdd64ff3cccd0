// SPDX-License-Identifier: Apache-2.0
#include "allocator/size_rules.h"

#include <algorithm>
#include <bit>

namespace stratalloc {

Bytes LargeHandleBytes(Bytes capacity, Bytes host_budget, Bytes granularity) {
  Bytes bytes = std::clamp(capacity / 256, 2 * kMiB, 32 * kMiB);
  if (host_budget > 0) {
    bytes = std::min(bytes, std::max(host_budget / 4, 2 * kMiB));
  }
  return RoundUp(std::bit_floor(bytes), granularity);
}

}  // namespace stratalloc
