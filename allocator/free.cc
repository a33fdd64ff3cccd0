// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: Free and record_stream; waiting for what was freed.
#include <algorithm>

#include "allocator/device_allocator.h"

namespace stratalloc {

Result<AllocatedBlock> DeviceAllocator::SlowFree(Address address) {
  MutexLock lock(mutex_);
  Block* block = heap_.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound, "not the base of an allocated block");
  }
  const Bytes size = block->size;
  const Charge charge = block->charge;
  blocks_.Free(block);
  return AnswerLocked(address, size, charge);
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
  if (routes_.MayRoute() && captures_.Note(stream)) {
    frees_.NoteCaptured(block, stream);
  }
  return {};
}

Status DeviceAllocator::SynchronizePendingFrees() {
  DeferredFrees::Wait wait;
  {
    MutexLock lock(mutex_);
    if (captures_.UnderWay()) return {};  // waiting would spoil the capture
    blocks_.RedeemPutOff();
    ++stats_.num_sync_all_streams;
    wait = frees_.BeginWait();
  }
  DeferredFrees::Await(device_, &wait);
  MutexLock lock(mutex_);
  for (Block* block : frees_.EndWait(wait)) blocks_.Release(block);
  blocks_.Process();
  return wait.status;
}

}  // namespace stratalloc
