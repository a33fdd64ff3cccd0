// SPDX-License-Identifier: Apache-2.0
// Blocks and segments: how a span of address space is divided.
//
//   segment  |-- block --|-- block --|---- block ----|-------- block --------|
//   handles  |     0     |     1     |     2     |     3     |     4     | ...
//
// Blocks of a segment are contiguous and in address order (prev/next); their
// edges and the handles' edges are independent, except that a kUnmapped block
// consists of whole handles.
//
// Device lock for everything here.
#ifndef STRATALLOC_ALLOCATOR_HEAP_BLOCK_H_
#define STRATALLOC_ALLOCATOR_HEAP_BLOCK_H_

#include <algorithm>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/heap/free_index.h"
#include "allocator/memory/handle_table.h"
#include "allocator/values/block_pin.h"
#include "allocator/values/block_state.h"
#include "allocator/values/charge_account.h"
#include "allocator/values/size_rules.h"
#include "allocator/values/tier_rule.h"

namespace stratalloc {

class Pool;
struct Block;

struct Segment {
  Pool* pool = nullptr;
  HandleRegion* region = nullptr;
  Address base = 0;
  Bytes bytes = 0;
  std::uint64_t mapped = 0;  // handles that are not kUnmapped
  Block* first = nullptr;
  bool oversize = false;  // counts in oversize_segments
  bool unmanaged =
      false;  // memory that comes and goes whole (unmanaged_memory.h)

  Address end() const { return base + bytes; }
  // May what lives here leave? Transient and staying pools lie in the same
  // regions as what may.
  bool evictable() const;
};

// The first cache line is what a malloc or free out of a bin looks at.
struct alignas(64) Block {
  Segment* segment = nullptr;
  Address address = 0;
  Bytes size = 0;
  Bytes requested = 0;  // while live
  Charge charge;        // while live
  // The account of `charge`; nullptr without accounting. While live.
  ChargeAccount* account = nullptr;
  Block* bin_next = nullptr;  // while binned
  BlockState state = BlockState::kUnmapped;
  // `streams` or `pins` are not empty, `raw`, `oversize` or a `rule`: its free
  // takes the whole way, so it is never binned.
  bool streams_noted = false;
  bool oversize = false;  // counts in oversize_allocations
  bool raw = false;       // a bare pointer (MallocRequest::raw)
  // Residency::epoch() when it was last handed out.
  std::uint32_t epoch = 0;
  // The use clock then; and events it waits for.
  std::uint32_t clock = 0;
  std::uint32_t pending_events = 0;
  // Unmanaged segments: UnmanagedSegments::searches when it was given back.
  std::uint32_t freed_at = 0;
  // The line that asked for it. While live and sites are recorded
  // (DeviceAllocator::RecordSites); else anything.
  SiteId site = kNoSite;
  Block* prev = nullptr;
  Block* next = nullptr;
  FreeIndex::Place filed;         // while kFree and filed
  std::vector<StreamId> streams;  // record_stream'ed, besides the pool's own
  PinCounts pins;
  Block* older_pointer = nullptr;  // while in PointerBlocks
  Block* newer_pointer = nullptr;
  bool shared = false;  // another process may have its memory; while live
  TierRule rule;        // while live

  Address end() const { return address + size; }
};

// Calls f(handle, bytes of the block inside it).
template <typename F>
void ForEachHandleOf(const Block& block, F&& f) {
  HandleRegion& region = *block.segment->region;
  Address at = block.address;
  while (at < block.end()) {
    const std::uint64_t index = region.IndexOf(at);
    const Address stop = std::min(block.end(), region.AddressOf(index + 1));
    f(HandleRef{&region, index}, stop - at);
    at = stop;
  }
}

// Calls f(handle) for every handle of the segment, in whatever state.
template <typename F>
void ForEachHandleOf(const Segment& segment, F&& f) {
  HandleRegion& region = *segment.region;
  const std::uint64_t end = region.IndexOf(segment.end() - 1) + 1;
  for (std::uint64_t i = region.IndexOf(segment.base); i < end; ++i) {
    f(HandleRef{&region, i});
  }
}

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->address < b->address;
  }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_BLOCK_H_
