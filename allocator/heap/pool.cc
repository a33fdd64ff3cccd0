// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/pool.h"

#include <algorithm>
#include <cstddef>

namespace stratalloc {

void Pool::File(Block* block) {
  const FreeKey key{block->size, block->address, block};
  if (block->state == BlockState::kFree) {
    block->filed = free_blocks_.Insert(key);
  }
  if (block->state == BlockState::kParked) {
    block->filed = parked_blocks_.insert(key).first;
  }
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.insert(block);
}

void Pool::Unfile(Block* block) {
  if (block->state == BlockState::kFree) free_blocks_.Erase(block->filed);
  if (block->state == BlockState::kParked) parked_blocks_.erase(block->filed);
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.erase(block);
}

bool Pool::CheckInvariants() const {
  if (!free_blocks_.CheckInvariants()) return false;
  std::size_t free = 0, unmapped = 0, parked = 0;
  for (const auto& segment : segments_) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state == BlockState::kFree) ++free;
      if (b->state == BlockState::kUnmapped) ++unmapped;
      if (b->state == BlockState::kParked) ++parked;
    }
  }
  return free == free_blocks_.size() && unmapped == unmapped_blocks_.size() &&
         parked == parked_blocks_.size() &&
         free_blocks_.ForEach([](const FreeKey& key) {
           return key.block->state == BlockState::kFree;
         }) &&
         std::all_of(parked_blocks_.begin(), parked_blocks_.end(),
                     [](const FreeKey& key) {
                       return key.block->state == BlockState::kParked &&
                              key.block->size == key.size &&
                              key.block->address == key.address;
                     }) &&
         std::all_of(unmapped_blocks_.begin(), unmapped_blocks_.end(),
                     [](const Block* block) {
                       return block->state == BlockState::kUnmapped;
                     });
}

}  // namespace stratalloc
