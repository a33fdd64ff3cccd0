// SPDX-License-Identifier: Apache-2.0
// The blocks of one device whose addresses data_ptr() gave away, in the order
// in which they were last asked for: a list through the blocks themselves.
//
// Every step takes a few stores, because data_ptr() is called in loops over
// whole models and each call makes its block the newest.
//
// Invariant (CheckInvariants): `bytes()` and `count()` are those of the list.
// A block is in it while it is allocated and pinned for kPointer: who frees it
// takes it out, so that nothing dead takes up a share of what may stay.
//
// Device lock for everything here.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_POINTER_BLOCKS_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_POINTER_BLOCKS_H_

#include <cstddef>

#include "allocator/base/bytes.h"
#include "allocator/heap/block.h"

namespace stratalloc {

class PointerBlocks {
 public:
  Bytes bytes() const { return bytes_; }
  std::size_t count() const { return count_; }
  Block* oldest() const { return oldest_; }  // nullptr: there is none

  // It is the newest from now on. REQUIRES: it is not among them.
  void Add(Block& block) {
    Append(block);
    bytes_ += block.size;
    ++count_;
  }
  // The same for one that is among them.
  void Renew(Block& block) {
    if (newest_ == &block) return;
    Unlink(block);
    Append(block);
  }
  void Remove(Block& block) {
    Unlink(block);
    bytes_ -= block.size;
    --count_;
  }

  bool CheckInvariants() const {
    Bytes bytes = 0;
    std::size_t count = 0;
    const Block* before = nullptr;
    for (const Block* b = oldest_; b != nullptr; b = b->newer_pointer) {
      if (b->older_pointer != before) return false;
      bytes += b->size;
      ++count;
      before = b;
    }
    return before == newest_ && bytes == bytes_ && count == count_;
  }

 private:
  void Append(Block& block) {
    block.older_pointer = newest_;
    block.newer_pointer = nullptr;
    (newest_ != nullptr ? newest_->newer_pointer : oldest_) = &block;
    newest_ = &block;
  }
  void Unlink(Block& block) {
    Block* const older = block.older_pointer;
    Block* const newer = block.newer_pointer;
    (older != nullptr ? older->newer_pointer : oldest_) = newer;
    (newer != nullptr ? newer->older_pointer : newest_) = older;
  }

  Block* oldest_ = nullptr;
  Block* newest_ = nullptr;
  Bytes bytes_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_POINTER_BLOCKS_H_
