// SPDX-License-Identifier: Apache-2.0
#include "allocator/pool.h"

#include <algorithm>
#include <cstddef>

namespace stratalloc {

void Pool::File(Block* block) {
  if (block->state == BlockState::kFree) {
    block->filed = free_blocks_.Insert({block->size, block->address, block});
  }
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.insert(block);
}

void Pool::Unfile(Block* block) {
  if (block->state == BlockState::kFree) free_blocks_.Erase(block->filed);
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.erase(block);
}

bool Pool::CheckInvariants() const {
  if (!free_blocks_.CheckInvariants()) return false;
  std::size_t free = 0, unmapped = 0;
  for (const auto& segment : segments_) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state == BlockState::kFree) ++free;
      if (b->state == BlockState::kUnmapped) ++unmapped;
    }
  }
  return free == free_blocks_.size() && unmapped == unmapped_blocks_.size() &&
         free_blocks_.ForEach([](const FreeKey& key) {
           return key.block->state == BlockState::kFree;
         }) &&
         std::all_of(unmapped_blocks_.begin(), unmapped_blocks_.end(),
                     [](const Block* block) {
                       return block->state == BlockState::kUnmapped;
                     });
}

}  // namespace stratalloc
