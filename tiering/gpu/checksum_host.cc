// SPDX-License-Identifier: Apache-2.0
#include "tiering/gpu/checksum_host.h"

#include "allocator/base/check.h"
#include "tiering/gpu/checksum_mix.h"

namespace stratalloc {

std::uint64_t ChecksumOnHost(const void* data, Bytes bytes) {
  STRATALLOC_CHECK(bytes % sizeof(std::uint64_t) == 0,
                   "a checksum is taken over whole words");
  const auto* const words = static_cast<const std::uint64_t*>(data);
  const Bytes count = bytes / sizeof(std::uint64_t);
  // Four sums: no term waits for the addition before it.
  std::uint64_t sums[4] = {};
  Bytes i = 0;
  for (; i + 4 <= count; i += 4) {
    for (Bytes lane = 0; lane < 4; ++lane) {
      sums[lane] += ChecksumTerm(words[i + lane], i + lane);
    }
  }
  for (; i < count; ++i) sums[0] += ChecksumTerm(words[i], i);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace stratalloc
