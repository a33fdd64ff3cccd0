// SPDX-License-Identifier: Apache-2.0
// The free blocks of one pool, to be found by best fit: the smallest that is
// large enough, the lowest address among equals.
//
// One tree for each class of sizes, eight classes to a power of two, and a bit
// for each tree that is not empty. A pool has tens to hundreds of free blocks:
// a tree of its own class is a few nodes deep at most, where one tree for all
// takes seven comparisons down and as many on the way to rebalance. A hundred
// thousand blocks of one size are still a tree.
//
// Every number a search needs is in the tree: it reads no block.
//
// Thread-safety: the caller holds the device lock.
// Invariants (CheckInvariants): a class's bit is set exactly when its tree is
// not empty; every block is in the tree of its class under the size and address
// it has, and its `filed` is its place there.
#ifndef STRATALLOC_ALLOCATOR_HEAP_FREE_INDEX_H_
#define STRATALLOC_ALLOCATOR_HEAP_FREE_INDEX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct Block;

struct FreeKey {
  Bytes size;
  Address address;
  Block* block;

  bool operator<(const FreeKey& other) const {
    return size != other.size ? size < other.size : address < other.address;
  }
};

class FreeIndex {
 public:
  using Place = std::set<FreeKey>::iterator;  // until it is erased

  Place Insert(const FreeKey& key);
  void Erase(Place place);
  // The best fit, or nullptr.
  Block* Find(Bytes size) const;
  Bytes Largest() const;

  // Calls f(key) for what has `least` bytes or more, smallest first, until it
  // returns false; false then. f does not change the index.
  template <typename F>
  bool ForEach(F&& f, Bytes least = 0) const {
    const FreeKey first{least, 0, nullptr};
    for (std::size_t at = FirstFrom(ClassOf(least)); at < kClasses;
         at = FirstFrom(at + 1)) {
      const std::set<FreeKey>& tree = classes_[at];
      for (auto key = tree.lower_bound(first); key != tree.end(); ++key) {
        if (!f(*key)) return false;
      }
    }
    return true;
  }

  std::size_t size() const;
  bool CheckInvariants() const;

 private:
  static constexpr int kSteps = 8;  // classes of a power of two
  // Sizes up to 2^48, more than any card's address space.
  static constexpr std::size_t kClasses = 48 * kSteps;
  static constexpr std::size_t kWords = kClasses / 64;

  static std::size_t ClassOf(Bytes size);
  // The first class from `at` on that is not empty; kClasses if none is.
  std::size_t FirstFrom(std::size_t at) const;

  std::array<std::uint64_t, kWords> used_{};
  std::array<std::set<FreeKey>, kClasses> classes_;
  // Nodes of blocks that were taken out, for those that are put in.
  static constexpr std::size_t kSpareNodes = 64;
  std::vector<std::set<FreeKey>::node_type> spare_nodes_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_FREE_INDEX_H_
