// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/live_blocks.h"

#include <utility>

#include "allocator/base/planted.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/state/settings.h"
#include "allocator/state/thread_site.h"

namespace stratalloc {

// ---- handed out -------------------------------------------------------------

// FindRun may start inside a larger free block; the front is what is used.
Bytes LiveBlocks::HandedOutOf(const Block& block, Bytes size) const {
  const bool whole =
      p_.private_pools.IsUnsplit(block.segment->pool->key().owner) ||
      (block.segment->unmanaged && size >= Settings::Get().max_split_size());
  return whole ? block.size : size;
}

Block* LiveBlocks::HandOut(Block* block, Bytes size, Bytes requested,
                           Charge charge) {
  Pool& pool = *block->segment->pool;
  const PoolKind kind = pool.key().kind;
  pool.Unfile(block);
  const Bytes oversize = Settings::Get().max_split_size();
  size = HandedOutOf(*block, size);
  if (block->size > size) {
    pool.File(p_.heap.Split(block, size));
    if (STRATALLOC_PLANTED(kWrongSplit)) requested += 512;
  }
  block->state = BlockState::kAllocated;
  block->requested = requested;
  block->charge = charge;
  if (block->segment->region->evictable) {
    ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
      if (handle.entry().live++ == 0) p_.residency.Make(handle);
    });
    if (pool.evictable()) {
      NoteHandedOut(*block);
      PinForOperator(*block, OperatorThread::ThisThread());
    }
  }
  p_.live.HandOut(kind, size, requested);
  if (size >= oversize) {
    p_.stats.oversize_allocations.Increase(1);
    block->oversize = block->streams_noted = true;
  }
  block->account = p_.accounts.Of(charge);
  Pay(*block);
  if (p_.slow.word() != 0) Recall(*block);
  return block;
}

void LiveBlocks::Recall(Block& block) {
  if (p_.slow.Has(SlowReason::kSites)) block.site = thread_site;
  if (p_.slow.Has(SlowReason::kHistory)) p_.traces.Alloc(block);
}

void LiveBlocks::NoteHandedOut(Block& block) {
  const std::uint32_t now = p_.use_clock.load(std::memory_order_relaxed);
  const std::uint64_t bit =
      std::uint64_t{1} << p_.streams.BitOf(block.segment->pool->key().stream);
  ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
    handle.use().NoteHandedOut(bit, now);
  });
  block.epoch = p_.residency.epoch();
  block.clock = now;
}

void LiveBlocks::PinForOperator(const Block& block, OperatorThread& thread) {
  if (!thread.KeepsWhatItAllocates()) return;
  // The default stream cannot capture, but an operator that is captured may use
  // it: torch makes the seeds of a graph's generators there.
  if (__builtin_expect(block.segment->pool->key().stream != kDefaultStream ||
                           p_.slow.Has(SlowReason::kPoolFilter),
                       0)) {
    p_.captures.KeepMade(block);
  }
  ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
    thread.PinForOutermost(handle.use());
  });
}

// ---- freed ------------------------------------------------------------------

void LiveBlocks::Free(Block* block) {
  if (p_.history.attentive()) {
    p_.traces.Free(TraceAction::kFreeRequested, *block);
  }
  const PoolKind kind = block->segment->pool->key().kind;
  p_.live.Free(kind, block->size, p_.heap.OnDevice(*block));
  PayBack(*block);
  if (std::exchange(block->oversize, false)) {
    p_.stats.oversize_allocations.Decrease(1);
  }
  // Streams that were recorded on the block must pass this point before its
  // memory can be handed out again.
  if (!block->streams.empty()) {
    block->state = BlockState::kPending;
    p_.pins.ForgetPointer(*block);
    if (!p_.captures.PutOff(block)) {
      p_.frees.Record(block);
      p_.slow.Set(SlowReason::kPendingFrees, true);
    }
  }
  if (block->state != BlockState::kPending) Release(block);
}

// Its owner has given it up, whatever still waits: torch counts it no more.
void LiveBlocks::PayBack(Block& block) {
  if (block.account == nullptr) return;
  const Charge paid = FrameAccounts::Get().Resolved(block.charge);
  ChargeAccount& account =
      block.charge.frame == 0 ? *block.account : LeaveFrame(block);
  block.account = nullptr;
  block.charge = paid;
  Bytes here = block.size;
  if (block.segment->region->evictable) {
    ForEachHandleOf(block, [&](HandleRef handle, Bytes bytes) {
      const HandleState state = handle.entry().state.load();
      if (!IsAway(state)) return;
      account.FreeBytes(bytes, Residency::TierOf(state));
      here -= bytes;
    });
  }
  account.Free(here);
}

ChargeAccount& LiveBlocks::LeaveFrame(const Block& block) {
  const FrameId id = block.charge.frame;
  FrameAccount& frame = FrameAccounts::Get().at(id);
  const bool ended = frame.ended;
  Add(frame.bytes, -block.size);
  // Once an open frame has no block its thread may end it without the lock, and
  // the account be another's: the last look at it is before this.
  const Bytes left = frame.DropBlock();
  if (!ended) return *block.account;
  if (left == 0) FrameAccounts::Get().Recycle(id);
  return *p_.accounts.Of({block.charge.scope, Category::kActivation});
}

void LiveBlocks::Relabel(Block& block, Charge charge, bool keep_category) {
  if (keep_category) {
    charge.category = FrameAccounts::Get().Resolved(block.charge).category;
    // Who names it will want it when its frame has ended, too.
    if (charge.category == Category::kTemporary && block.charge.frame != 0) {
      charge.category = Category::kActivation;
    }
  }
  if (charge == block.charge) return;
  if (block.account != nullptr) {
    ChargeAccount& from =
        block.charge.frame == 0 ? *block.account : LeaveFrame(block);
    ChargeAccount& to = *p_.accounts.Of(charge);
    ForEachHandleOf(block, [&](HandleRef handle, Bytes inside) {
      from.Give(inside, Residency::TierOf(handle.entry().state.load()), to);
    });
    from.GiveBlocks(1, to);
    block.account = &to;
  } else {
    block.account = p_.accounts.Of(charge);
  }
  block.charge = charge;
  p_.traces.Relabelled(block);
}

TierRule LiveBlocks::SetRule(Block& block, TierRule rule) {
  if (rule.some() != block.rule.some()) {
    ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
      std::uint32_t& ruled = handle.entry().ruled;
      rule.some() ? ++ruled : --ruled;
    });
  }
  if (rule.some()) block.streams_noted = true;  // its free takes the whole way
  return std::exchange(block.rule, rule);
}

TierRule LiveBlocks::SumOfRules(HandleRef handle) const {
  TierRule sum;
  p_.heap.ForEachLive(handle,
                      [&](const Block& block, Bytes) { sum.Add(block.rule); });
  return sum;
}

void LiveBlocks::EndFrame(FrameId id) {
  FrameAccount& frame = FrameAccounts::Get().at(id);
  if (Read(frame.blocks) == 0) return FrameAccounts::Get().Recycle(id);
  frame.ended = true;
  p_.traces.FrameEnded(id, frame.scope);
  ChargeAccount* const was =
      p_.accounts.Of({frame.scope, Category::kTemporary});
  if (was == nullptr) return;
  ChargeAccount& is = *p_.accounts.Of({frame.scope, Category::kActivation});
  // Frames hold transient blocks alone, and those are on the device.
  was->Give(Read(frame.bytes), TierId::kDevice, is);
  was->GiveBlocks(Read(frame.blocks), is);
}

void LiveBlocks::Release(Block* block) {
  if (p_.history.attentive() &&
      p_.traces.Free(TraceAction::kFreeCompleted, *block)) {
    NoteHistory();  // the last context may have been what kept it on
  }
  p_.live.Complete(block->segment->pool->key().kind, block->size,
                   block->requested, p_.heap.OnDevice(*block));
  GiveBack(block);
}

void LiveBlocks::Process() {
  if (p_.captures.UnderWay()) return;
  RedeemPutOff();
  for (Block* block : p_.frees.Collect()) Release(block);
  p_.slow.Set(SlowReason::kPendingFrees, p_.frees.pending());
}

void LiveBlocks::RedeemPutOff() {
  if (!p_.frees.some_put_off() || p_.captures.UnderWay()) return;
  for (Block* block : p_.frees.Redeem()) Release(block);
  p_.slow.Set(SlowReason::kPendingFrees, p_.frees.pending());
  p_.captures.Publish();
}

// ---- given back -------------------------------------------------------------

void LiveBlocks::GiveBack(Block* block) {
  Segment& segment = *block->segment;
  Pool& pool = *segment.pool;
  bool plain = true;  // every handle is resident: no cutting needed
  p_.pins.Drop(*block);
  if (segment.region->evictable) {
    ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
      HandleEntry& entry = handle.entry();
      --entry.live;
      if (entry.state.load() != HandleState::kResident) plain = false;
      if (entry.live > 0) return;
      p_.private_pools.DropFreed(entry);
      p_.residency.Drop(handle);
    });
  }
  p_.frees.Forget(block);
  if (__builtin_expect(block->rule.some(), 0)) SetRule(*block, {});
  block->raw = block->streams_noted = block->shared = false;
  block->charge = {};
  block->account = nullptr;
  block->requested = 0;
  block->state = BlockState::kFree;
  if (plain) {
    block = p_.heap.Merge(block);
    block->freed_at = p_.unmanaged.searches();
    if (STRATALLOC_PLANTED(kLostBlock) && block->size > 2 * kMiB) {
      block->state = BlockState::kParked;  // never to be found as free
    }
    pool.File(block);
  } else {
    pool.File(block);  // Refile takes out what it looks at
    // Whole handles: a handle that lost its last live block changes what the
    // free blocks beside this one are worth.
    const HandleRegion& region = *segment.region;
    const Address lo = region.AddressOf(region.IndexOf(block->address));
    const Address hi = region.AddressOf(region.IndexOf(block->end() - 1) + 1);
    p_.heap.Refile(segment, lo, hi);
  }
}

void LiveBlocks::EmptyBins() {
  for (const auto& [key, pool] : p_.heap.pools()) EmptyBins(*pool);
}

void LiveBlocks::EmptyBins(Pool& pool) {
  pool.bins().Empty([&](Block* block) { GiveBack(block); });
}

}  // namespace stratalloc
