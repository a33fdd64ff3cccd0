// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: taking checkpoints of private pools and going back to them.
#include "allocator/checkpoint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

std::vector<CheckpointBlock> DeviceAllocator::AllocatedInLocked(PoolId id) {
  std::vector<CheckpointBlock> allocated;
  for (const auto& [key, pool] : heap_.pools()) {
    if (key.owner != id) continue;
    for (const auto& segment : pool->segments()) {
      for (const Block* b = segment->first; b != nullptr; b = b->next) {
        if (b->state != BlockState::kAllocated) continue;
        allocated.push_back({b->address, b->size, b->requested, b->charge});
      }
    }
  }
  std::sort(allocated.begin(), allocated.end(),
            [](const CheckpointBlock& a, const CheckpointBlock& b) {
              return a.address < b.address;
            });
  return allocated;
}

Result<Checkpoint> DeviceAllocator::TakeCheckpoint(PoolId id) {
  MutexLock lock(mutex_);
  PrivatePool* const pool = private_pools_.Find(id);
  if (pool == nullptr) {
    return Fail(ErrorCode::kNotFound, "Could not find private pool id");
  }
  pool->addresses_kept = true;
  return Checkpoint{id, AllocatedInLocked(id)};
}

Block* DeviceAllocator::FreeSpanLocked(const CheckpointBlock& wanted,
                                       PoolId id) {
  Block* block = heap_.BlockAt(wanted.address);
  if (block == nullptr || block->state != BlockState::kFree ||
      block->end() < wanted.address + wanted.bytes ||
      block->segment->pool->key().owner != id) {
    return nullptr;
  }
  return block;
}

Result<CheckpointDelta> DeviceAllocator::GoBackTo(
    const Checkpoint& checkpoint) {
  MutexLock lock(mutex_);
  const PoolId id = checkpoint.pool;
  if (!private_pools_.IsInUse(id)) {
    return Fail(ErrorCode::kNotFound,
                "Could not find private pool id: no graph or MemPool that uses "
                "it is alive, so its memory may be gone");
  }
  ProcessEventsLocked();
  EmptyBinsLocked();  // what they hold is free, and not filed as free
  CheckpointDelta delta;
  std::vector<std::vector<StreamId>> recorded;
  delta.freed = AllocatedInLocked(id);
  for (const CheckpointBlock& live : delta.freed) {
    Block* block = heap_.BlockAt(live.address);
    // A graph orders its own streams: nobody waits for the uses recorded here.
    recorded.push_back(std::exchange(block->streams, {}));
    block->streams_noted = block->shared = false;
    FreeLocked(block);
  }
  for (const CheckpointBlock& wanted : checkpoint.allocated) {
    if (FreeSpanLocked(wanted, id) != nullptr) continue;
    // Freed with events outstanding, or the pool's memory moved on. What was
    // freed comes back before the caller hears of it: nothing is lost.
    for (std::size_t i = 0; i < delta.freed.size(); ++i) {
      TakeSpanLocked(delta.freed[i], id);
      Block* block = heap_.BlockAt(delta.freed[i].address);
      block->streams = std::move(recorded[i]);
      block->streams_noted = !block->streams.empty();
    }
    return Fail(ErrorCode::kInvalidArgument,
                "the private pool has no free memory at " +
                    std::to_string(wanted.address) +
                    " any more, where the checkpoint had a block of " +
                    FormatBytes(wanted.bytes) +
                    ". Was it freed while another stream used it? Synchronise "
                    "before going back.");
  }
  for (const CheckpointBlock& wanted : checkpoint.allocated) {
    TakeSpanLocked(wanted, id);
  }
  delta.allocated = checkpoint.allocated;
  return delta;
}

void DeviceAllocator::TakeSpanLocked(const CheckpointBlock& wanted, PoolId id) {
  Block* block = FreeSpanLocked(wanted, id);
  STRATALLOC_CHECK(block != nullptr, "a span that was free");
  Pool& pool = *block->segment->pool;
  if (block->address < wanted.address) {
    pool.Unfile(block);
    Block* rest = heap_.Split(block, wanted.address - block->address);
    pool.File(block);
    pool.File(rest);
    block = rest;
  }
  HandOutLocked(block, wanted.bytes, wanted.requested, wanted.charge);
}

}  // namespace stratalloc
