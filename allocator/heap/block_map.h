// SPDX-License-Identifier: Apache-2.0
// From an address to its block, by arithmetic on the reservation.
//
//   directory   one pointer per 64 MiB of the reservation
//   leaf        one slot per 512 bytes (a block starts at a multiple of that):
//               the block that starts there, or nullptr; and the slots in use
//               as bits, in two levels, for looking backwards
//
// A look-up by base is two loads. A look-up of an interior address walks back
// over bits: 4096 slots per step at worst. Both levels are mapped without
// memory and touched by page: a block costs its own 8 bytes, whatever its
// size, and a reservation of terabytes costs a directory of kilobytes.
//
// Blocks outside the reservation (memory that the driver placed itself) are
// kept in a std::map beside the table: correct, and slower.
//
// Device lock for everything here. Lifetime: the device's. Leaves stay mapped
// once made; at most one per 64 MiB of address space that ever had a block.
// Failure: no host address space for a leaf (1 MiB) ends the process.
#ifndef STRATALLOC_ALLOCATOR_HEAP_BLOCK_MAP_H_
#define STRATALLOC_ALLOCATOR_HEAP_BLOCK_MAP_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "allocator/base/bytes.h"
#include "allocator/heap/block.h"
#include "allocator/values/size_rules.h"

namespace stratalloc {

class BlockMap {
 public:
  // The table is for the addresses [base, end), which may be none.
  BlockMap(Address base, Address end);
  ~BlockMap();
  BlockMap(const BlockMap&) = delete;
  BlockMap& operator=(const BlockMap&) = delete;

  // The block that starts at `address`, which may be any number; or nullptr.
  Block* Find(Address address) const {
    const Address offset = address - base_;
    if (offset >= bytes_) return FindOutside(address);
    if (offset % kMinBlockSize != 0) return nullptr;
    const Leaf* leaf = directory_[offset >> kLeafShift];
    return leaf == nullptr ? nullptr : leaf->blocks[SlotOf(offset)];
  }
  // The block with the highest start at or below `address`, or nullptr, on
  // the same side of the reservation's edges. It may end before `address`.
  Block* FindBelow(Address address) const;

  // How many blocks start in [lo, hi), which lies in the reservation or out of
  // it: a bit is looked at for each, no block.
  std::size_t Count(Address lo, Address hi) const;

  void Insert(Block* block);  // at its address, which must be vacant
  void Erase(Address address);

 private:
  static constexpr int kLeafShift = 26;
  static constexpr Bytes kLeafBytes = Bytes{1} << kLeafShift;
  static constexpr std::size_t kSlots = kLeafBytes / kMinBlockSize;
  static constexpr std::size_t kWords = kSlots / 64;
  struct Leaf {
    Block* blocks[kSlots];
    std::uint64_t used[kWords];
    std::uint64_t used_words[kWords / 64];
  };
  static std::size_t SlotOf(Address offset) {
    return offset % kLeafBytes / kMinBlockSize;
  }
  Block* FindOutside(Address address) const;
  // The last slot in use at or below `slot`, or kSlots.
  static std::size_t LastUsed(const Leaf& leaf, std::size_t slot);

  Address base_;
  Bytes bytes_;
  std::size_t leaves_;
  Leaf** directory_;
  std::map<Address, Block*> outside_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_BLOCK_MAP_H_
