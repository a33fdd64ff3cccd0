// SPDX-License-Identifier: Apache-2.0
// Where the bytes of one block may lie below the device, as the program says.
// The unit that moves is a handle, which may hold several blocks: it goes only
// where all that live in it may go, and stays where that is nowhere. The rule
// goes with its block.
//
// Plain values; LiveBlocks has those of blocks, under the device lock.
#ifndef STRATALLOC_ALLOCATOR_VALUES_TIER_RULE_H_
#define STRATALLOC_ALLOCATOR_VALUES_TIER_RULE_H_

#include <algorithm>
#include <cstdint>

namespace stratalloc {

struct TierRule {
  // How its chunks on disk are packed. Of several blocks in one handle the
  // first in this order counts: what takes the least time. What kAsSet is worth
  // there is known to whoever knows the setting.
  enum class Packing : std::uint8_t {
    kOff = 0,
    kLz4 = 1,
    kZstd = 2,
    kAsSet = 3,  // as the setting says
  };

  bool host = true, disk = true;  // may lie there
  Packing packing = Packing::kAsSet;
  // Of several: another has kAsSet, which counts as what is set then.
  bool some_as_set = false;

  bool some() const { return !host || !disk || packing != Packing::kAsSet; }
  bool nowhere() const { return !host && !disk; }
  void Add(const TierRule& other) {
    host = host && other.host;
    disk = disk && other.disk;
    packing = std::min(packing, other.packing);
    some_as_set |= other.packing == Packing::kAsSet;
  }
  friend bool operator==(const TierRule&, const TierRule&) = default;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_TIER_RULE_H_
