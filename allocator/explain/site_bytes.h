// SPDX-License-Identifier: Apache-2.0
// What was allocated where: the allocated bytes of a device by the line that
// asked for them (Block::site), category and tier, at one moment. What was not
// sampled is one row of kNoSite, so that the rows' bytes on all tiers add up to
// what is live, and those on the device to allocated_bytes. Blocks that only
// wait for their streams are nobody's, as in the ledger.
//
// The caller holds the device lock. Nothing can fail. Cost: a look at every
// block, 100 000 in about a millisecond; only reports ask.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_SITE_BYTES_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_SITE_BYTES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"

namespace stratalloc {

class BlockHeap;

struct SiteBytes {
  SiteId site = kNoSite;
  Category category = Category::kUnknown;  // kUnknown of kNoSite
  std::array<Bytes, kTiers> on{};          // by tier
  std::uint64_t blocks = 0;
};

// In the order of site and category.
std::vector<SiteBytes> SiteBytesOf(const BlockHeap& heap);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_SITE_BYTES_H_
