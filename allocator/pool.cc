// SPDX-License-Identifier: Apache-2.0
#include "allocator/pool.h"

#include <utility>

namespace stratalloc {

Block* Pool::FindFree(Bytes size) const {
  const auto it = free_blocks_.lower_bound(FreeKey{size, 0, nullptr});
  return it == free_blocks_.end() ? nullptr : it->block;
}

Bytes Pool::LargestFree() const {
  return free_blocks_.empty() ? 0 : free_blocks_.rbegin()->size;
}

void Pool::File(Block* block) {
  if (block->state == BlockState::kFree) {
    const FreeKey key{block->size, block->address, block};
    if (spare_nodes_.empty()) {
      block->filed = free_blocks_.insert(key).first;
    } else {
      spare_nodes_.back().value() = key;
      block->filed =
          free_blocks_.insert(std::move(spare_nodes_.back())).position;
      spare_nodes_.pop_back();
    }
  }
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.insert(block);
}

void Pool::Unfile(Block* block) {
  if (block->state == BlockState::kFree) {
    auto node = free_blocks_.extract(block->filed);
    if (spare_nodes_.size() < kSpareNodes) {
      spare_nodes_.push_back(std::move(node));
    }
  }
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.erase(block);
}

}  // namespace stratalloc
