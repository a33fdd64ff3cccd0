// SPDX-License-Identifier: Apache-2.0
#include "allocator/explain/site_bytes.h"

#include <map>
#include <utility>

#include "allocator/blocks/residency.h"
#include "allocator/heap/block_heap.h"
#include "allocator/state/frame_accounts.h"

namespace stratalloc {
namespace {

std::size_t Index(TierId tier) { return static_cast<std::size_t>(tier); }

void Add(const BlockHeap& heap, const Block& block, SiteBytes* to) {
  ++to->blocks;
  if (!heap.MayBeAway(block)) {
    to->on[Index(TierId::kDevice)] += block.size;
    return;
  }
  ForEachHandleOf(block, [&](HandleRef handle, Bytes inside) {
    to->on[Index(Residency::TierOf(handle.entry().state.load()))] += inside;
  });
}

}  // namespace

std::vector<SiteBytes> SiteBytesOf(const BlockHeap& heap) {
  SiteBytes not_sampled;
  std::map<std::pair<SiteId, Category>, SiteBytes> sampled;
  for (const auto& [base, segment] : heap.segments()) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->next != nullptr) __builtin_prefetch(b->next->next);
      if (b->state != BlockState::kAllocated) continue;
      if (b->site == kNoSite) {
        Add(heap, *b, &not_sampled);
        continue;
      }
      const Category category =
          FrameAccounts::Get().Resolved(b->charge).category;
      SiteBytes& row = sampled[{b->site, category}];
      row.site = b->site;
      row.category = category;
      Add(heap, *b, &row);
    }
  }
  std::vector<SiteBytes> rows;
  if (not_sampled.blocks != 0) rows.push_back(not_sampled);
  for (const auto& [key, row] : sampled) rows.push_back(row);
  return rows;
}

}  // namespace stratalloc
