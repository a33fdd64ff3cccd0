// SPDX-License-Identifier: Apache-2.0
// BlockHeap: the equations of its header.
#include <cstdint>
#include <map>

#include "allocator/heap/block_heap.h"

namespace stratalloc {
namespace {

const char* CheckHandleUnder(const Block& block, HandleRef handle,
                             Bytes inside) {
  const HandleState state = handle.entry().state.load();
  if (block.state == BlockState::kFree && state != HandleState::kResident) {
    return "a cached block lies in resident handles";
  }
  if (block.state == BlockState::kUnmapped &&
      (state != HandleState::kUnmapped || inside != handle.bytes())) {
    return "unmapped space consists of whole unmapped handles";
  }
  if (block.pins.any() && handle.entry().pins.load() == 0) {
    return "a pinned block has a pin on each of its handles";
  }
  if (IsLive(block.state) &&
      (state == HandleState::kUnmapped || state == HandleState::kReleasing)) {
    return "live bytes are somewhere";
  }
  return nullptr;
}

}  // namespace

const char* BlockHeap::CheckBlocks(const Segment& segment) const {
  Address at = segment.base;
  const Block* prev = nullptr;
  for (const Block* b = segment.first; b != nullptr; prev = b, b = b->next) {
    if (b->address != at || b->prev != prev) {
      return "blocks of a segment are contiguous";
    }
    if (blocks_.Find(b->address) != b) {
      return "every block is found by its address";
    }
    if (prev != nullptr && !IsLive(b->state) && prev->state == b->state) {
      return "free neighbours of one state are merged";
    }
    at = b->end();
    if (b->rule.some() && !IsLive(b->state))
      return "a rule ends with its block";
    const char* wrong = nullptr;
    ForEachHandleOf(*b, [&](HandleRef handle, Bytes inside) {
      if (wrong == nullptr) wrong = CheckHandleUnder(*b, handle, inside);
    });
    if (wrong != nullptr) return wrong;
  }
  return at == segment.end() ? nullptr : "blocks cover their segment";
}

const char* BlockHeap::CheckHandles(const Segment& segment) {
  std::map<const HandleEntry*, std::uint32_t> live, ruled;
  for (const Block* b = segment.first; b != nullptr; b = b->next) {
    if (!IsLive(b->state)) continue;
    ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
      ++live[&handle.entry()];
      ruled[&handle.entry()] += b->rule.some();
    });
  }
  std::uint64_t mapped = 0;
  const char* wrong = nullptr;
  ForEachHandleOf(segment, [&](HandleRef handle) {
    const HandleEntry& entry = handle.entry();
    const HandleState state = entry.state.load();
    const auto rules = ruled.find(&entry);
    if (entry.ruled != (rules == ruled.end() ? 0 : rules->second)) {
      wrong = "ruled counts the blocks over a handle that have a rule";
    }
    if (segment.region->evictable &&
        entry.stays.load() == segment.evictable()) {
      wrong = "what stays is a transient or staying pool's";
    }
    if (state == HandleState::kUnmapped) return;
    ++mapped;
    if (IsAway(state) && !segment.evictable()) wrong = "what is away may leave";
    const auto it = live.find(&entry);
    if (segment.region->evictable &&
        entry.live != (it == live.end() ? 0 : it->second)) {
      wrong = "live counts the blocks over a handle";
    }
  });
  if (wrong != nullptr) return wrong;
  return mapped == segment.mapped ? nullptr : "mapped counts handles";
}

const char* BlockHeap::CheckInvariants() const {
  std::int64_t with_memory = 0;
  std::uint64_t away = 0;
  for (const auto& [base, segment] : segments_) {
    if (const char* wrong = CheckBlocks(*segment)) return wrong;
    if (const char* wrong = CheckHandles(*segment)) return wrong;
    with_memory += segment->mapped > 0;
    ForEachHandleOf(*segment, [&](HandleRef handle) {
      away += IsAway(handle.entry().state.load());
    });
  }
  for (const auto& [key, pool] : pools_) {
    if (!pool->CheckInvariants()) {
      return "free and unmapped blocks are filed where they are";
    }
  }
  if (away != away_) return "away counts handles not on the device";
  return with_memory == stats_.segment.stats[0].current
             ? nullptr
             : "segment counts segments with memory";
}

}  // namespace stratalloc
