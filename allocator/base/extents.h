// SPDX-License-Identifier: Apache-2.0
// The free ranges of a line of bytes (a pinned slab, a spill file): a sorted
// list that merges neighbours. Small and plain: the lines it serves hold
// hundreds of ranges, each worth at least a page, mostly 2 MiB.
//
// Thread-safety: none, the owner's lock guards it.
// Allocates: only when more ranges are free at once than were ever reserved,
// so the owner calls Reserve() with its bound and Take/Add never call malloc.
// Invariants: ranges are disjoint, not adjacent, in order; total() is their
// sum.
#ifndef STRATALLOC_ALLOCATOR_BASE_EXTENTS_H_
#define STRATALLOC_ALLOCATOR_BASE_EXTENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

class Extents {
 public:
  struct Range {
    std::uint64_t offset;
    Bytes bytes;
  };

  void Reserve(std::size_t ranges) { ranges_.reserve(ranges); }

  // Makes [offset, offset + bytes) free. CHECKs that no byte of it already is
  // (a double free).
  void Add(std::uint64_t offset, Bytes bytes);

  // Takes `bytes` from the first range that holds them, at its low end; from
  // the last one, at its high end. Mixing sizes from opposite ends keeps the
  // middle in one piece. nullopt if no range is large enough.
  std::optional<std::uint64_t> TakeLow(Bytes bytes);
  std::optional<std::uint64_t> TakeHigh(Bytes bytes);

  Bytes total() const { return total_; }
  Bytes largest() const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
  Bytes total_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_EXTENTS_H_
