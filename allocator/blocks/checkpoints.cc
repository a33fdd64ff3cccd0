// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/checkpoints.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/state/frame_accounts.h"

namespace stratalloc {
namespace {

// The frame will have ended when the pool goes back to this.
Charge ChargeOf(const Block& block) {
  Charge charge = FrameAccounts::Get().Resolved(block.charge);
  if (block.charge.frame != 0) charge.category = Category::kActivation;
  return charge;
}

}  // namespace

std::vector<CheckpointBlock> Checkpoints::AllocatedIn(PoolId id) const {
  std::vector<CheckpointBlock> allocated;
  for (const auto& [key, pool] : p_.heap.pools()) {
    if (key.owner != id) continue;
    for (const auto& segment : pool->segments()) {
      for (const Block* b = segment->first; b != nullptr; b = b->next) {
        if (b->state != BlockState::kAllocated) continue;
        allocated.push_back(
            {b->address, b->size, b->requested, ChargeOf(*b), b->site});
      }
    }
  }
  std::sort(allocated.begin(), allocated.end(),
            [](const CheckpointBlock& a, const CheckpointBlock& b) {
              return a.address < b.address;
            });
  return allocated;
}

Result<Checkpoint> Checkpoints::Take(PoolId id) {
  PrivatePool* const pool = p_.private_pools.Find(id);
  if (pool == nullptr) {
    return Fail(ErrorCode::kNotFound, "Could not find private pool id");
  }
  pool->addresses_kept = true;
  return Checkpoint{id, AllocatedIn(id)};
}

Block* Checkpoints::FreeSpan(const CheckpointBlock& wanted, PoolId id) const {
  Block* block = p_.heap.BlockAt(wanted.address);
  if (block == nullptr || block->state != BlockState::kFree ||
      block->end() < wanted.address + wanted.bytes ||
      block->segment->pool->key().owner != id) {
    return nullptr;
  }
  return block;
}

Result<CheckpointDelta> Checkpoints::GoBack(const Checkpoint& checkpoint) {
  const PoolId id = checkpoint.pool;
  if (!p_.private_pools.IsInUse(id)) {
    return Fail(ErrorCode::kNotFound,
                "Could not find private pool id: no graph or MemPool that uses "
                "it is alive, so its memory may be gone");
  }
  p_.blocks.Process();
  p_.blocks.EmptyBins();  // what they hold is free, and not filed as free
  CheckpointDelta delta;
  std::vector<std::vector<StreamId>> recorded;
  delta.freed = AllocatedIn(id);
  for (const CheckpointBlock& live : delta.freed) {
    Block* block = p_.heap.BlockAt(live.address);
    // A graph orders its own streams: nobody waits for the uses recorded here.
    recorded.push_back(std::exchange(block->streams, {}));
    block->streams_noted = block->shared = false;
    p_.blocks.Free(block);
  }
  for (const CheckpointBlock& wanted : checkpoint.allocated) {
    if (FreeSpan(wanted, id) != nullptr) continue;
    // Freed with events outstanding, or the pool's memory moved on. What was
    // freed comes back before the caller hears of it: nothing is lost.
    for (std::size_t i = 0; i < delta.freed.size(); ++i) {
      TakeSpan(delta.freed[i], id);
      Block* block = p_.heap.BlockAt(delta.freed[i].address);
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
    TakeSpan(wanted, id);
  }
  delta.allocated = checkpoint.allocated;
  return delta;
}

void Checkpoints::TakeSpan(const CheckpointBlock& wanted, PoolId id) {
  Block* block = FreeSpan(wanted, id);
  STRATALLOC_CHECK(block != nullptr, "a span that was free");
  Pool& pool = *block->segment->pool;
  if (block->address < wanted.address) {
    pool.Unfile(block);
    Block* rest = p_.heap.Split(block, wanted.address - block->address);
    pool.File(block);
    pool.File(rest);
    block = rest;
  }
  // It is what it was, whoever makes it so.
  p_.blocks.HandOut(block, wanted.bytes, wanted.requested, wanted.charge)
      ->site = wanted.site;
}

}  // namespace stratalloc
