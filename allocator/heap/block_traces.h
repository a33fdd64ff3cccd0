// SPDX-License-Identifier: Apache-2.0
// What history hears of blocks and mappings. A block of which a handle is away
// is told of in pieces, since events speak of device memory only.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Nothing here can fail; while nothing is recorded only contexts are kept.
#ifndef STRATALLOC_ALLOCATOR_HEAP_BLOCK_TRACES_H_
#define STRATALLOC_ALLOCATOR_HEAP_BLOCK_TRACES_H_

#include <optional>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/history.h"

namespace stratalloc {

class BlockTraces {
 public:
  BlockTraces(History& history, const BlockHeap& heap, DeviceIndex device)
      : history_(history), heap_(heap), device_(device) {}

  // One event per contiguous run of handles, which are in address order.
  void Mapped(TraceAction action, const std::vector<HandleRef>& handles,
              TraceCause cause);
  void Alloc(const Block& block);
  // True if a context was forgotten: the last one may have been what kept
  // history attentive.
  bool Free(TraceAction action, const Block& block);
  // Both events of a block that nothing waits for.
  bool FreeAtOnce(const Block& block);
  // Blocks have sites (DeviceAllocator::RecordSites), or what they have is
  // none.
  void UseSites(bool on) { sites_ = on; }
  bool uses_sites() const { return sites_; }
  // A label for a block that lives: for torch's history.
  void Annotate(const Block& block, const std::string& label);
  // Somebody else owns it: for the event rings.
  void Relabelled(const Block& block);
  // What lives of the frame's blocks is an activation now: for the event rings.
  void FrameEnded(FrameId id, ScopeId scope);
  // The live blocks over a handle that leaves or returns, as far as they touch
  // it: freed before the mapping changes, allocated after it.
  void LiveOver(HandleRef handle, bool allocated, TraceCause cause);

 private:
  struct Piece {
    Address base, end;
  };

  TracePoint PointOf(TraceAction action, Address address, Bytes bytes,
                     const Segment& segment, const Block* block);
  // `bytes`: of those `size` what was asked for. `block`: whose event it is;
  // nullptr for a segment's.
  void Record(TraceAction action, Address address, Bytes bytes, Bytes size,
              const Segment& segment, const Block* block,
              const HistoryContext& fallback, TraceCause cause,
              std::optional<TraceAction> then = {});
  // Of the pool in the event rings; named there when it is first asked for.
  std::uint16_t NumberOf(Pool& pool);
  // For the event rings, whose readers know blocks by where they begin: torch's
  // events, of device memory, do not say that such a block ended.
  void FreedAway(const Block& block);
  // One event per contiguous part of the block that is on the device and
  // touches [lo, hi].
  void RecordPieces(TraceAction action, const Block& block, Address lo,
                    Address hi, TraceCause cause);
  std::vector<Piece> Pieces(const Block& block) const;

  History& history_;
  const BlockHeap& heap_;
  const DeviceIndex device_;
  bool sites_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_BLOCK_TRACES_H_
