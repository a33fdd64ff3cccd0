// SPDX-License-Identifier: Apache-2.0
#include "allocator/pool.h"

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

}  // namespace stratalloc
