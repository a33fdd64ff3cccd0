// SPDX-License-Identifier: Apache-2.0
// The blocks of one pool that were freed last, by exact size, newest first:
// what malloc looks at before anything else, and where free puts a block.
//
// A block in a bin is free for everybody (statistics, ledger, snapshot) but
// has not been given back: it is not merged with its neighbours and its
// handles still count it as live, so taking it again costs nothing per handle.
// Whoever needs the whole truth about free memory empties the bins first
// (LiveBlocks::EmptyBins): malloc before it splits a block that is
// larger than one in a bin need be and before it maps memory, eviction before
// it chooses, every report.
//
// Bounded, because blocks that are not merged are fragments: kMaxBlocks of
// them and kMaxBytes, then the pool empties its bins and starts again.
//
// Device lock for everything here. One bin per size, in one of two places
// found by hashing. A size may have both: then either serves.
#ifndef STRATALLOC_ALLOCATOR_HEAP_BLOCK_BINS_H_
#define STRATALLOC_ALLOCATOR_HEAP_BLOCK_BINS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocator/base/bytes.h"
#include "allocator/heap/block.h"

namespace stratalloc {

class BlockBins {
 public:
  static constexpr int kMaxBlocks = 64;
  // A block of 64 MiB, the largest that the bench asks for, fits twice.
  static constexpr Bytes kMaxBytes = 128 * kMiB;

  bool empty() const { return count_ == 0; }
  // No block in a bin is larger.
  Bytes largest() const { return largest_; }

  // The newest block of exactly `size`, or nullptr.
  Block* Take(Bytes size) {
    Bin* bin = &bins_[IndexOf(size)];
    if (bin->size != size) bin = &Other(*bin);
    Block* block = bin->first;
    if (block == nullptr || bin->size != size) return nullptr;
    bin->first = block->bin_next;
    --count_;
    bytes_ -= size;
    return block;
  }
  // False if the bounds or two colliding sizes refuse it.
  bool Put(Block* block) {
    const Bytes size = block->size;
    if (count_ == kMaxBlocks || bytes_ + size > kMaxBytes) return false;
    Bin* bin = &bins_[IndexOf(size)];
    if (bin->size != size && bin->first != nullptr) {
      bin = &Other(*bin);
      if (bin->size != size && bin->first != nullptr) return false;
    }
    bin->size = size;
    block->bin_next = bin->first;
    bin->first = block;
    const auto index = static_cast<std::size_t>(bin - bins_.data());
    used_[index / 64] |= std::uint64_t{1} << index % 64;
    ++count_;
    bytes_ += size;
    largest_ = std::max(largest_, size);
    return true;
  }
  // Everything out, calling f(block) for each.
  template <typename F>
  void Empty(F&& f) {
    if (count_ == 0) return;
    count_ = 0;
    bytes_ = largest_ = 0;
    for (std::size_t word = 0; word < kWords; ++word) {
      for (std::uint64_t used = std::exchange(used_[word], 0); used != 0;
           used &= used - 1) {
        Bin& bin =
            bins_[word * 64 + static_cast<std::size_t>(std::countr_zero(used))];
        for (Block* block = std::exchange(bin.first, nullptr);
             block != nullptr;) {
          f(std::exchange(block, block->bin_next));
        }
      }
    }
  }

 private:
  static constexpr int kBinBits = 7;
  struct Bin {
    Bytes size = 0;
    Block* first = nullptr;
  };
  // The second place of a size.
  Bin& Other(const Bin& bin) {
    return bins_[static_cast<std::size_t>(&bin - bins_.data()) ^ 1];
  }
  static std::size_t IndexOf(Bytes size) {
    return (size / kMinBlockSize * 0x9E3779B97F4A7C15u) >> (64 - kBinBits);
  }

  int count_ = 0;
  Bytes bytes_ = 0, largest_ = 0;
  // Bins that were put into since they were last emptied.
  static constexpr std::size_t kWords = (1 << kBinBits) / 64;
  std::uint64_t used_[kWords] = {};
  std::array<Bin, 1 << kBinBits> bins_{};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_BLOCK_BINS_H_
