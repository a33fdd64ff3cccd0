// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: Free, record_stream, deferred frees, giving memory back.
#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/device_allocator.h"
#include "allocator/settings.h"

namespace stratalloc {

Result<AllocatedBlock> DeviceAllocator::SlowFree(Address address) {
  MutexLock lock(mutex_);
  Block* block = heap_.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound, "not the base of an allocated block");
  }
  const Bytes size = block->size;
  const Charge charge = block->charge;
  FreeLocked(block);
  return AnswerLocked(address, size, charge);
}

void DeviceAllocator::FreeLocked(Block* block) {
  if (history_.attentive()) {
    traces_.Free(TraceAction::kFreeRequested, *block);
  }
  const PoolKind kind = block->segment->pool->key().kind;
  live_.Free(kind, block->size, heap_.OnDevice(*block));
  if (std::exchange(block->oversize, false)) {
    stats_.oversize_allocations.Decrease(1);
  }
  // Streams that were recorded on the block must pass this point before its
  // memory can be handed out again.
  if (!block->streams.empty()) {
    block->state = BlockState::kPending;
    pins_.ForgetPointer(*block);
    if (!PutOffLocked(block)) RecordFreeEventsLocked(block);
  }
  if (block->state != BlockState::kPending) ReleaseBlockLocked(block);
}

void DeviceAllocator::RecordFreeEventsLocked(Block* block) {
  frees_.Record(block);
  slow_.Set(SlowReason::kPendingFrees, true);
}

void DeviceAllocator::ReleaseBlockLocked(Block* block) {
  if (history_.attentive() &&
      traces_.Free(TraceAction::kFreeCompleted, *block)) {
    NoteHistoryLocked();  // the last context may have been what kept it on
  }
  live_.Complete(block->segment->pool->key().kind, block->size,
                 block->requested, heap_.OnDevice(*block));
  GiveBackLocked(block, /*owned=*/true);
}

void DeviceAllocator::GiveBackLocked(Block* block, bool owned) {
  Segment& segment = *block->segment;
  Pool& pool = *segment.pool;
  bool plain = true;         // every handle is resident: no cutting needed
  Bytes here = block->size;  // on the device
  pins_.Drop(*block);
  if (segment.region->evictable) {
    ForEachHandleOf(*block, [&](HandleRef handle, Bytes bytes) {
      mutex_.AssertHeld();
      HandleEntry& entry = handle.entry();
      --entry.live;
      const HandleState state = entry.state.load();
      if (state != HandleState::kResident) plain = false;
      if (IsAway(state) && block->account != nullptr) {
        block->account->Free(bytes, Residency::TierOf(state));
        here -= bytes;
      }
      if (entry.live > 0) return;
      private_pools_.DropFreed(entry);
      residency_.Drop(handle);
    });
  }
  if (owned && block->account != nullptr) block->account->Free(here);
  frees_.Forget(block);
  block->raw = block->streams_noted = block->shared = false;
  block->charge = {};
  block->account = nullptr;
  block->requested = 0;
  block->state = BlockState::kFree;
  if (plain) {
    block = heap_.Merge(block);
    block->freed_at = searches_;
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
    heap_.Refile(segment, lo, hi);
  }
}

Status DeviceAllocator::RecordStream(Address address, StreamId stream) {
  MutexLock lock(mutex_);
  Block* block = heap_.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound,
                "record_stream on memory that is not allocated here");
  }
  if (block->segment->evictable()) {
    const std::uint64_t bit = std::uint64_t{1} << streams_.BitOf(stream);
    ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
      handle.entry().fence.fetch_or(bit);
    });
  }
  if (stream == block->segment->pool->key().stream) return {};
  if (std::find(block->streams.begin(), block->streams.end(), stream) ==
      block->streams.end()) {
    block->streams.push_back(stream);
    block->streams_noted = true;
  }
  if (routes_.MayRoute() && NoteCaptureLocked(stream)) {
    frees_.NoteCaptured(block, stream);
  }
  return {};
}

void DeviceAllocator::ProcessEventsLocked() {
  if (CapturingLocked()) return;
  RedeemPutOffLocked();
  for (Block* block : frees_.Collect()) ReleaseBlockLocked(block);
  slow_.Set(SlowReason::kPendingFrees, frees_.pending());
}

Status DeviceAllocator::SynchronizePendingFrees() {
  DeferredFrees::Wait wait;
  {
    MutexLock lock(mutex_);
    if (CapturingLocked()) return {};  // waiting would spoil the capture
    RedeemPutOffLocked();
    ++stats_.num_sync_all_streams;
    wait = frees_.BeginWait();
  }
  DeferredFrees::Await(device_, &wait);
  MutexLock lock(mutex_);
  for (Block* block : frees_.EndWait(wait)) ReleaseBlockLocked(block);
  ProcessEventsLocked();
  return wait.status;
}

}  // namespace stratalloc
