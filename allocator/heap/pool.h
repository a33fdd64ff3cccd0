// SPDX-License-Identifier: Apache-2.0
// A pool: the free blocks of one (stream, lifetime class, small/large, owner)
// and the segments they lie in. The owner is a private pool, or nobody. Pools
// never share a handle, so a cold layer frees whole handles and transients do
// not strand persistent pages.
//
// Device lock for everything here.
// Invariants: every kFree block of the pool's segments is in `free_blocks`,
// every kUnmapped one in `unmapped_blocks`, every kParked one in
// `parked_blocks`, every kBinned one in `bins`, no other block in any.
// CheckInvariants looks at the first three.
#ifndef STRATALLOC_ALLOCATOR_HEAP_POOL_H_
#define STRATALLOC_ALLOCATOR_HEAP_POOL_H_

#include <compare>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/heap/block_bins.h"
#include "allocator/heap/free_index.h"
#include "allocator/heap/private_pool.h"

namespace stratalloc {

struct PoolKey {
  StreamId stream = kDefaultStream;
  LifetimeClass lifetime = LifetimeClass::kUnknown;
  PoolKind kind = PoolKind::kSmall;
  PoolId owner = {};

  auto operator<=>(const PoolKey&) const = default;
};

class Pool {
 public:
  explicit Pool(PoolKey key)
      : key_(key),
        has_bins_(key == PoolKey{.stream = key.stream,
                                 .lifetime = key.lifetime,
                                 .kind = key.kind}),
        evictable_(IsEvictable(key.lifetime)) {}

  const PoolKey& key() const { return key_; }
  const std::vector<std::unique_ptr<Segment>>& segments() const {
    return segments_;
  }
  std::vector<std::unique_ptr<Segment>>& segments() { return segments_; }

  void File(Block* block);    // into the index of its state, if it has one
  void Unfile(Block* block);  // out of it

  // Mapped memory.
  const FreeIndex& free_blocks() const { return free_blocks_; }
  const std::set<Block*, ByAddress>& unmapped_blocks() const {
    return unmapped_blocks_;
  }
  // Memory that may come back, see Residency::FindAwaySpace.
  const std::set<FreeKey>& parked_blocks() const { return parked_blocks_; }
  // Only the ordinary pools of a stream keep blocks in bins.
  bool has_bins() const { return has_bins_; }
  // While tiering is on; without it every pool is transient.
  bool evictable() const { return evictable_; }
  BlockBins& bins() { return bins_; }

  // In the event rings (block_traces.h); 0: no number was left for it. Empty:
  // nobody has asked yet.
  std::optional<std::uint16_t> event_number;

  bool CheckInvariants() const;

 private:
  const PoolKey key_;
  const bool has_bins_;
  const bool evictable_;
  BlockBins bins_;
  FreeIndex free_blocks_;
  std::set<Block*, ByAddress> unmapped_blocks_;
  std::set<FreeKey> parked_blocks_;
  std::vector<std::unique_ptr<Segment>> segments_;
};

inline bool Segment::evictable() const {
  return region->evictable && pool->evictable();
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_POOL_H_
