// SPDX-License-Identifier: Apache-2.0
// Handles that have memory and nothing live: how they move to where memory is
// wanted, or go back. Nothing is unmapped while work may still use it: memory
// moves only if its streams have nothing left to do, or are the one that will
// use it, so that the work is in order; what goes back is waited for first,
// without the lock, between BeginRelease and EndRelease.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Nothing here fails.
// Invariant: a handle is in kReleasing from BeginRelease to EndRelease, and
// its space is nobody's to hand out meanwhile.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_FREE_HANDLES_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_FREE_HANDLES_H_

#include <functional>
#include <vector>

#include "allocator/blocks/live_blocks.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/block_traces.h"
#include "allocator/memory/page_store.h"
#include "allocator/streams/captures.h"
#include "allocator/streams/private_pools.h"

namespace stratalloc {

class FreeHandles {
 public:
  struct Parts {
    BlockHeap& heap;
    PageStore& pages;
    BlockTraces& traces;
    SegmentStats& stats;
    StreamTable& streams;
    const PrivatePools& private_pools;
    Captures& captures;
    LiveBlocks& blocks;
  };
  // Handles on their way back.
  struct Release {
    std::vector<HandleRef> handles;
    std::uint64_t used_streams = 0;  // streams to wait for
    std::uint64_t last_put = 0;      // what had moved by then
    bool is_nothing() const { return handles.empty() && used_streams == 0; }
  };

  explicit FreeHandles(const Parts& parts) : p_(parts) {}

  // Do positions of this segment that nothing lives at keep their mappings? In
  // private pools a capture must find nothing to unmap.
  static bool KeepsMappings(const Segment& segment) {
    return !segment.unmanaged && !segment.pool->key().owner.is_private();
  }

  // ---- they move -----------------------------------------------------------

  // Gives up what [lo, hi) needs and may have at once. First handles whose
  // memory is mapped there.
  void MoveTo(Segment& segment, Address lo, Address hi,
              const StreamsIdle& idle);
  // Where the memory is while it may move; no region if it may not, or is in
  // [lo, hi). `own`: the stream that will use it, as a bit. `near`: a block to
  // look at first, and then the one looked at: memory that was used together
  // lies together.
  HandleRef Elsewhere(const PhysicalMemory* memory, Address lo, Address hi,
                      std::uint64_t own, const StreamsIdle& idle,
                      const Block** near = nullptr) const;
  // The first position without memory in [lo, hi) whose mapping cannot be had:
  // it is of memory that is used elsewhere, and work that used it here may
  // still be running. 0 if there is none.
  Address BusyPlace(Address lo, Address hi, std::uint64_t own,
                    const StreamsIdle& idle) const;

  // ---- they go back --------------------------------------------------------

  // Wholly free handles of every pool until `wanted` bytes came together, of
  // the private pool `only` if that is one, else none of private pools in use.
  // REQUIRES: bins are empty; no capture is under way.
  Release BeginRelease(Bytes wanted, PoolId only);
  // The bytes that came free; none unless everything on its streams has run.
  Bytes EndRelease(const Release& release, bool fenced);
  // kResident or kReleasing -> kUnmapped. In address order per segment. Of a
  // unmanaged segment UnmanagedSegments::TakeEmpty does the rest.
  void GiveUp(const std::vector<HandleRef>& handles, bool fenced);

 private:
  // Those that accept(handle, streams that used it) says yes to.
  std::vector<HandleRef> Find(
      Bytes wanted, PoolId only,
      const std::function<bool(HandleRef, std::uint64_t)>& accept) const;
  // May its memory be used elsewhere, by `own`, at once?
  bool MayMove(HandleRef handle, std::uint64_t own,
               const StreamsIdle& idle) const;
  // The streams, as bits, that work on a free handle may be on.
  std::uint64_t UsersOf(HandleRef handle) const;

  const Parts p_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_FREE_HANDLES_H_
