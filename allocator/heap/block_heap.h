// SPDX-License-Identifier: Apache-2.0
// The blocks of one device: address space divided into segments, segments into
// blocks, free blocks into pools. What a block's memory is worth it reads from
// the state of the handles under it (Refile); who changes those states, and
// everything about CUDA, is somebody else's.
//
//   pools      own segments, by (stream, class, small/large, owner)
//   segments   by address; each is one chain of blocks
//   blocks     by address (block_map.h); free ones filed in their pool
//   free space address space that no segment has, per region
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Nothing here waits, calls the driver or fails, but for want of address space.
// Invariants (CheckInvariants): blocks of a segment are contiguous and cover
// it; each is found by its address; no two neighbours are in the same free
// state; a kFree block lies in resident handles only, and every byte of a
// kUnmapped one in kUnmapped handles; `mapped` of a segment counts its handles
// that are not kUnmapped; away() counts those whose bytes are on another tier;
// what stays is a transient or staying pool's; every pool's free blocks are
// filed (pool.h).
#ifndef STRATALLOC_ALLOCATOR_HEAP_BLOCK_HEAP_H_
#define STRATALLOC_ALLOCATOR_HEAP_BLOCK_HEAP_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "allocator/base/extents.h"
#include "allocator/heap/block.h"
#include "allocator/heap/block_map.h"
#include "allocator/heap/history.h"
#include "allocator/heap/live_counters.h"
#include "allocator/heap/pool.h"
#include "allocator/memory/handle_table.h"
#include "allocator/values/stats.h"

namespace stratalloc {

class BlockHeap {
 public:
  struct Run {
    Address lo = 0, hi = 0;
    Bytes bytes() const { return hi > lo ? hi - lo : 0; }
  };
  // The first position in [lo, hi) that cannot be mapped now; 0 if there is
  // none. Of whoever knows what is mapped.
  using BusyPlace = std::function<Address(Address lo, Address hi)>;
  using Pools = std::map<PoolKey, std::unique_ptr<Pool>>;
  using Segments = std::map<Address, Segment*>;

  // `stats` counts the segments with memory; `history` has contexts of
  // segments, which are cut and joined with them. Both outlive this.
  BlockHeap(HandleTable& table, SegmentStats& stats, History& history);
  ~BlockHeap();  // for tests: the blocks that are left
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // ---- pools --------------------------------------------------------------

  Pool* FindPool(const PoolKey& key) const;  // nullptr if there is none
  Pool& PoolOf(const PoolKey& key);          // made if there is none
  // The same for the pools of nobody, as found last; nullptr if there is none.
  Pool* RecentPool(StreamId stream, LifetimeClass lifetime, PoolKind kind);
  const Pools& pools() const { return pools_; }
  // REQUIRES: they have no segment left.
  void ErasePoolsOf(PoolId owner);

  // ---- segments -----------------------------------------------------------

  const Segments& segments() const { return segments_; }
  // Address space for the pool: `wanted` bytes, or `least` if there is not so
  // much side by side; one block without memory. nullptr if there is none.
  Segment* AddSegment(Pool& pool, HandleRegion& region, Bytes bytes);
  // A segment of one handle with memory, one free block.
  Segment& AddUnmanagedSegment(Pool& pool, HandleRegion& region);
  // Ends the segments of `pool` that `gone` says yes to, each without memory or
  // unmanaged, and one free block: their address space is free.
  void DropSegments(Pool& pool, const std::function<bool(Segment&)>& gone);
  Segment& SegmentOf(HandleRef handle) const;
  // So many handles of it have memory, or bytes away, that had none, or the
  // other way round.
  void NoteMapped(Segment& segment, std::uint64_t handles);
  void NoteUnmapped(Segment& segment, std::uint64_t handles);
  // Handles whose bytes are on another tier, as whoever moves them says.
  std::uint64_t away() const { return away_; }
  void NoteLeft() { ++away_; }
  void NoteReturned() { --away_; }

  // ---- blocks -------------------------------------------------------------

  Block* Find(Address base) const { return blocks_.Find(base); }
  // The block that holds `address`, or nullptr.
  Block* BlockAt(Address address) const;
  std::size_t CountBlocks(Address lo, Address hi) const {
    return blocks_.Count(lo, hi);
  }
  // The bytes of a block that are on the device: all but what was evicted.
  LiveCounters::OnDevice OnDevice(const Block& block) const {
    return MayBeAway(block)
               ? CountOnDevice(block)
               : LiveCounters::OnDevice{block.size, block.requested};
  }
  bool MayBeAway(const Block& block) const {
    return away_ != 0 && block.segment->region->evictable;
  }
  // Addresses of the handles that overlap these blocks, as far as they are
  // allocated here.
  std::set<Address> HandlesUnder(const std::vector<Address>& blocks) const;
  // Cuts a block that is in no index; the second part, in no index either.
  Block* Split(Block* block, Bytes at);
  // With its neighbours of the same free state. In no index, before and after.
  Block* Merge(Block* block);
  // Recomputes the free state of every free block in [lo, hi).
  void Refile(Segment& segment, Address lo, Address hi);
  void Refile(HandleRef handle);
  // f(block, bytes of it in the handle) for the live blocks over a handle.
  template <typename F>
  void ForEachLive(HandleRef handle, F&& f) const {
    const Address lo = handle.address(), hi = lo + handle.bytes();
    for (Block* b = BlockAt(lo); b != nullptr && b->address < hi; b = b->next) {
      if (!IsLive(b->state)) continue;
      f(*b, std::min(hi, b->end()) - std::max(lo, b->address));
    }
  }

  // ---- places for a request ----------------------------------------------

  // Where `size` bytes can be had by mapping: of the first places, in address
  // order, of adjacent kFree and kUnmapped space the one that needs the fewest
  // handles: `needed` bytes of them. 0 if there is none.
  Address FindRun(const Pool& pool, Bytes size, const BusyPlace& busy,
                  Bytes* needed) const;
  // Where `size` bytes can be had side by side of what is free in the pool and
  // in whole handles of the stream's other classes: of the runs that take the
  // fewest handles the shortest, cut to the size. With `busy` also address
  // space without memory, where that says that nothing is in the way.
  // REQUIRES: the pools of those classes have nothing binned.
  Run FindTakeOver(const Pool& pool, Bytes size,
                   const BusyPlace* busy = nullptr) const;
  // What the pool would use of it beside what it has: other classes' memory and
  // what is yet to be mapped, in whole handles.
  Bytes HandlesFor(const Pool& pool, Run run) const;
  // Makes it the pool's. Nothing is asked of the driver.
  void TakeOver(Pool& pool, Run run);
  // The pools of the stream's other classes.
  std::vector<Pool*> OtherClasses(const Pool& pool) const;

  // Makes this heap, which has nothing yet, the same as `other`: for trying
  // what would happen. Its table is for the same addresses, and gets the
  // states. REQUIRES: no bin of `other` has a block.
  void CopyFrom(const BlockHeap& other);

  // `nullptr` if all is well, else what is not.
  const char* CheckInvariants() const;

 private:
  static constexpr int kRecent = 32;

  static LiveCounters::OnDevice CountOnDevice(const Block& block);
  // Splitting and merging make and drop a block each time: kept for reuse
  // rather than given to the C++ heap.
  Block* NewBlock();
  void DropBlock(Block* block);
  Segment& Place(std::unique_ptr<Segment> segment, Pool& pool,
                 BlockState state);
  // A segment that is one free block is about to go: nobody finds it any more.
  void Forget(const Segment& segment);
  void CopySegment(const Segment& from, Pool& pool);
  // The half of Merge that looks back.
  Block* MergeBack(Block* block);
  // `block` grows over its next neighbour, which ends. Neither is in an index.
  void JoinNext(Block* block);
  // Cuts a free block where the state of its handles changes; the rest, if it
  // was cut. The block itself is filed.
  Block* FileFront(Block* block);
  Extents& SpaceOf(const HandleRegion& region);
  // HandleEntry::stays of every handle of the segment.
  void NoteStays(const Segment& segment, bool stays);

  // take_over.cc
  // The neighbours by address, of other segments too; nullptr at an edge.
  const Block* Before(const Block& block) const;
  const Block* After(const Block& block) const;
  // What `pool` can have of a block, and of all the free memory around it.
  static Run PartFor(const Pool& pool, const HandleRegion* region,
                     const Block* block, bool unmapped_too);
  Run RunAround(const Pool& pool, const Block& block, bool unmapped_too) const;
  // [lo, hi) of a free block, whole handles, is another pool's from now on.
  void ChangePool(Block* block, Address lo, Address hi, Pool& pool);
  // Divides the segment at `at`, where a block and a handle begin.
  void CutSegment(Segment& segment, Address at);
  // Two neighbours of the same pool become one; the shorter one ends.
  void JoinSegments(Segment& left, Segment& right);
  // Joins the segment that begins at `base` to its neighbours of the same pool.
  void JoinNeighbours(Address base);

  // block_heap_check.cc
  const char* CheckBlocks(const Segment& segment) const;
  static const char* CheckHandles(const Segment& segment);

  HandleTable& table_;
  SegmentStats& stats_;
  History& history_;
  BlockMap blocks_;                // every block of every state
  Block* spare_blocks_ = nullptr;  // by bin_next
  Pools pools_;
  Pool* recent_pools_[kRecent] = {};  // by hash
  Segments segments_;
  std::uint64_t away_ = 0;
  Extents free_space_[4];  // by region
};

inline Pool* BlockHeap::RecentPool(StreamId stream, LifetimeClass lifetime,
                                   PoolKind kind) {
  // Streams are pointers to structures: their low bits say nothing.
  const std::uint64_t hash = Raw(stream) >> 4 ^ Raw(stream) >> 9 ^
                             std::uint64_t{Raw(lifetime)} * 2 ^
                             static_cast<std::uint64_t>(kind);
  Pool*& recent = recent_pools_[hash % kRecent];
  const PoolKey key{.stream = stream, .lifetime = lifetime, .kind = kind};
  if (__builtin_expect(recent == nullptr || recent->key() != key, 0)) {
    Pool* found = FindPool(key);
    if (found == nullptr) return nullptr;
    recent = found;
  }
  return recent;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_BLOCK_HEAP_H_
