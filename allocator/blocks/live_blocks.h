// SPDX-License-Identifier: Apache-2.0
// The life of a block: handed out, freed, and given back once nothing uses its
// memory. Each step moves the statistics, the account that pays, the handles
// below the block, its pins, what history hears and the pool's indexes
// together, so that whoever holds the lock sees no half of it.
//
//   HandOut   kFree -> kAllocated
//   Free      kAllocated -> kFree, or kPending while events or a capture are
//             outstanding
//   Process   kPending -> kFree, of those whose events are done
//   EmptyBins kBinned -> kFree: what the fast path has freed (fast_path.cc)
//
// Where memory for a request comes from is Placement's; which block serves one
// out of a bin is the fast path's, which uses the pieces below.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Nothing here fails: what the driver does not tell leaves a block pending.
// Invariant: allocated <= active, each the sum of what is on the device; in
// evictable regions each handle's `live` = live and binned blocks over it
// (DeviceReports::CheckInvariants), and `ruled` those that have a rule.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_LIVE_BLOCKS_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_LIVE_BLOCKS_H_

#include <atomic>
#include <cstdint>

#include "allocator/blocks/block_pins.h"
#include "allocator/blocks/recent_accounts.h"
#include "allocator/blocks/residency.h"
#include "allocator/blocks/unmanaged_segments.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/block_traces.h"
#include "allocator/heap/live_counters.h"
#include "allocator/state/frame_accounts.h"
#include "allocator/state/slow_reasons.h"
#include "allocator/streams/captures.h"
#include "allocator/streams/deferred_frees.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

struct OperatorThread;

class LiveBlocks {
 public:
  struct Parts {
    BlockHeap& heap;
    LiveCounters& live;
    SegmentStats& stats;
    History& history;
    BlockTraces& traces;
    RecentAccounts& accounts;
    BlockPins& pins;
    PrivatePools& private_pools;
    Captures& captures;
    DeferredFrees& frees;
    Residency& residency;
    const UnmanagedSegments& unmanaged;
    StreamTable& streams;
    std::atomic<std::uint32_t>& use_clock;
    SlowReasons& slow;
  };
  explicit LiveBlocks(const Parts& parts) : p_(parts) {}

  // ---- handed out ----------------------------------------------------------

  // What a request of `size` takes of this free block: some are not split.
  Bytes HandedOutOf(const Block& block, Bytes size) const;

  // The front of a free block that is filed: `size` bytes, or all of it where
  // its pool does not split. Charged, counted and told of.
  Block* HandOut(Block* block, Bytes size, Bytes requested, Charge charge);
  // What is recorded of it: by history, and the line that asked for it.
  // REQUIRES: the slow reasons say what.
  void Recall(Block& block);
  // What that means for the handles below it.
  void NoteHandedOut(Block& block);
  // They stay until the outermost operator of the thread has returned, if it is
  // inside one: no guard saw the block as an argument.
  void PinForOperator(const Block& block, OperatorThread& thread);

  // ---- freed ---------------------------------------------------------------

  void Free(Block* block);
  // Pending blocks whose events are done are given back; none while a stream
  // captures. Also those of a capture that is over.
  void Process();
  void Release(Block* block);  // a pending one of which that is known
  // What was put off by a capture waits for events now, if none is under way.
  void RedeemPutOff();

  // ---- given back ----------------------------------------------------------

  // What the bins hold: after it free memory is merged, and no handle counts a
  // free block as live.
  void EmptyBins();
  void EmptyBins(Pool& pool);
  // Its account pays for a block that was handed out, and is paid back one that
  // is wholly on the device.
  void Pay(const Block& block) {
    if (block.account == nullptr) return;
    block.account->Allocate(block.size);
    if (block.charge.frame == 0) return;
    FrameAccount& frame = FrameAccounts::Get().at(block.charge.frame);
    Add(frame.bytes, block.size);
    Add(frame.blocks, 1);
  }
  void PayBackHere(const Block& block) {
    if (block.account == nullptr) return;
    (block.charge.frame == 0 ? *block.account : LeaveFrame(block))
        .Free(block.size);
  }
  // Somebody else pays from now on. Its category stays if `keep_category`.
  void Relabel(Block& block, Charge charge, bool keep_category);
  // Where its bytes may lie below the device (tier_rule.h), until it is freed.
  // The rule it had.
  TierRule SetRule(Block& block, TierRule rule);
  // That of a handle: of all that lives over it.
  TierRule RuleOf(HandleRef handle) const {
    return handle.entry().ruled == 0 ? TierRule{} : SumOfRules(handle);
  }
  // The frame has ended: what is left of it is no longer temporary.
  void EndFrame(FrameId id);
  // The slow reason of history, after what may have changed it.
  void NoteHistory() {
    p_.slow.Set(SlowReason::kHistory, p_.history.attentive());
  }

 private:
  // The account is paid back what the block costs, tier by tier.
  void PayBack(Block& block);
  // The block is its frame's no more. Who pays for it.
  ChargeAccount& LeaveFrame(const Block& block);
  // Handles, merging and the free index; statistics know by now.
  void GiveBack(Block* block);

  TierRule SumOfRules(HandleRef handle) const;

  const Parts p_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_LIVE_BLOCKS_H_
