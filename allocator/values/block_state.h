// SPDX-License-Identifier: Apache-2.0
// What a block is at the moment (block.h has blocks).
#ifndef STRATALLOC_ALLOCATOR_VALUES_BLOCK_STATE_H_
#define STRATALLOC_ALLOCATOR_VALUES_BLOCK_STATE_H_

#include <cstdint>

namespace stratalloc {

enum class BlockState : std::uint8_t {
  kFree,       // cached: mapped memory that may be handed out
  kUnmapped,   // free address space without memory, whole handles
  kParked,     // free, but its handle is away, moving or being released
  kAllocated,  // handed out
  kPending,    // freed by the caller, events of other streams outstanding
  kBinned,     // freed and kept whole for the next of its size (block_bins.h)
};
constexpr bool IsLive(BlockState s) {
  return s == BlockState::kAllocated || s == BlockState::kPending;
}
// Free, given back and merged: filed by the state of its handles.
constexpr bool IsFiled(BlockState s) {
  return s == BlockState::kFree || s == BlockState::kUnmapped ||
         s == BlockState::kParked;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_BLOCK_STATE_H_
