// SPDX-License-Identifier: Apache-2.0
#include "allocator/pool.h"

#include <utility>

namespace stratalloc {

Block* Pool::FindFree(Bytes size) const {
  Block key;
  key.size = size;
  auto it = free_blocks_.lower_bound(&key);
  return it == free_blocks_.end() ? nullptr : *it;
}

Bytes Pool::LargestFree() const {
  return free_blocks_.empty() ? 0 : (*free_blocks_.rbegin())->size;
}

void Pool::File(Block* block) {
  if (block->state == BlockState::kFree) {
    if (spare_nodes_.empty()) {
      free_blocks_.insert(block);
    } else {
      spare_nodes_.back().value() = block;
      free_blocks_.insert(std::move(spare_nodes_.back()));
      spare_nodes_.pop_back();
    }
  }
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.insert(block);
}

void Pool::Unfile(Block* block) {
  if (block->state == BlockState::kFree) {
    auto node = free_blocks_.extract(block);
    if (!node.empty() && spare_nodes_.size() < kSpareNodes) {
      spare_nodes_.push_back(std::move(node));
    }
  }
  if (block->state == BlockState::kUnmapped) unmapped_blocks_.erase(block);
}

}  // namespace stratalloc
