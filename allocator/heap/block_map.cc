// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/block_map.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {

// Zero pages: nullptr and no bit set.
void* MapLazily(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  STRATALLOC_CHECK(at != MAP_FAILED,
                   "no address space to find blocks in; raise ulimit -v");
  return at;
}

// The bits of `word` up to and including `bit`.
std::uint64_t UpTo(std::uint64_t word, std::size_t bit) {
  return word & (~std::uint64_t{0} >> (63 - bit));
}
std::size_t Highest(std::uint64_t word) {
  return 63 - static_cast<std::size_t>(std::countl_zero(word));
}

}  // namespace

BlockMap::BlockMap(Address base, Address end)
    : base_(base),
      bytes_(end - base),
      leaves_((bytes_ + kLeafBytes - 1) / kLeafBytes),
      directory_(leaves_ == 0 ? nullptr
                              : static_cast<Leaf**>(
                                    MapLazily(leaves_ * sizeof(Leaf*)))) {}

BlockMap::~BlockMap() {
  for (std::size_t i = 0; i < leaves_; ++i) {
    if (directory_[i] != nullptr) munmap(directory_[i], sizeof(Leaf));
  }
  if (directory_ != nullptr) munmap(directory_, leaves_ * sizeof(Leaf*));
}

std::size_t BlockMap::LastUsed(const Leaf& leaf, std::size_t slot) {
  std::size_t word = slot / 64;
  if (const std::uint64_t bits = UpTo(leaf.used[word], slot % 64)) {
    return word * 64 + Highest(bits);
  }
  if (word-- == 0) return kSlots;
  std::uint64_t words = UpTo(leaf.used_words[word / 64], word % 64);
  std::size_t group = word / 64;
  while (words == 0) {
    if (group-- == 0) return kSlots;
    words = leaf.used_words[group];
  }
  word = group * 64 + Highest(words);
  return word * 64 + Highest(leaf.used[word]);
}

Block* BlockMap::FindOutside(Address address) const {
  if (outside_.empty()) return nullptr;
  const auto found = outside_.find(address);
  return found == outside_.end() ? nullptr : found->second;
}

Block* BlockMap::FindBelow(Address address) const {
  const Address offset = address - base_;
  if (offset >= bytes_) {
    const auto above = outside_.upper_bound(address);
    return above == outside_.begin() ? nullptr : std::prev(above)->second;
  }
  std::size_t slot = SlotOf(offset);
  for (std::size_t i = offset / kLeafBytes + 1; i-- > 0;) {
    if (const Leaf* leaf = directory_[i]) {
      const std::size_t found = LastUsed(*leaf, slot);
      if (found != kSlots) return leaf->blocks[found];
    }
    slot = kSlots - 1;
  }
  return nullptr;
}

std::size_t BlockMap::Count(Address lo, Address hi) const {
  if (lo - base_ >= bytes_) {
    return static_cast<std::size_t>(
        std::distance(outside_.lower_bound(lo), outside_.lower_bound(hi)));
  }
  constexpr Bytes kWordBytes = 64 * kMinBlockSize;
  const Bytes end = RoundUp(std::min(hi - base_, bytes_), kMinBlockSize);
  std::size_t count = 0;
  for (Bytes at = RoundUp(lo - base_, kMinBlockSize); at < end;) {
    const Leaf* leaf = directory_[at >> kLeafShift];
    if (leaf == nullptr) {
      at = RoundDown(at, kLeafBytes) + kLeafBytes;
      continue;
    }
    // Whole words without a block are many where blocks are large.
    const std::size_t first = SlotOf(at) / 64;
    const std::uint64_t words = leaf->used_words[first / 64] >> first % 64;
    const auto skip = static_cast<std::size_t>(
        words == 0 ? 64 - first % 64 : std::countr_zero(words));
    if (skip > 0) {
      at = RoundDown(at, kWordBytes) + skip * kWordBytes;
      continue;
    }
    const Bytes word = RoundDown(at, kWordBytes);
    std::uint64_t used = leaf->used[SlotOf(at) / 64];
    used &= ~std::uint64_t{0} << (at - word) / kMinBlockSize;
    if (end - word < kWordBytes) {
      used &= (std::uint64_t{1} << (end - word) / kMinBlockSize) - 1;
    }
    count += static_cast<std::size_t>(std::popcount(used));
    at = word + kWordBytes;
  }
  return count;
}

void BlockMap::Insert(Block* block) {
  const Address offset = block->address - base_;
  if (offset >= bytes_) {
    outside_[block->address] = block;
    return;
  }
  STRATALLOC_DCHECK(offset % kMinBlockSize == 0, "a block between two slots");
  Leaf*& leaf = directory_[offset / kLeafBytes];
  if (leaf == nullptr) leaf = static_cast<Leaf*>(MapLazily(sizeof(Leaf)));
  const std::size_t slot = SlotOf(offset);
  STRATALLOC_DCHECK(leaf->blocks[slot] == nullptr, "two blocks in one place");
  leaf->blocks[slot] = block;
  leaf->used[slot / 64] |= std::uint64_t{1} << slot % 64;
  leaf->used_words[slot / 4096] |= std::uint64_t{1} << slot / 64 % 64;
}

void BlockMap::Erase(Address address) {
  const Address offset = address - base_;
  if (offset >= bytes_) {
    outside_.erase(address);
    return;
  }
  Leaf& leaf = *directory_[offset / kLeafBytes];
  const std::size_t slot = SlotOf(offset);
  leaf.blocks[slot] = nullptr;
  leaf.used[slot / 64] &= ~(std::uint64_t{1} << slot % 64);
  if (leaf.used[slot / 64] == 0) {
    leaf.used_words[slot / 4096] &= ~(std::uint64_t{1} << slot / 64 % 64);
  }
}

}  // namespace stratalloc
