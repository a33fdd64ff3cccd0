// SPDX-License-Identifier: Apache-2.0
// Who keeps which block on the device beyond an operator (block_pin.h has the
// values): one pin on each handle of a block while any reason holds. Knows
// blocks and handles, and asks nobody.
//
// Of the blocks that data_ptr() gave away only the newest stay: they are listed
// in the order in which they were last asked for (pointer_blocks.h).
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Nothing here can fail: what is not there to pin has no pin (serial 0).
// Invariant (Check): a block with a pin for kPointer is allocated, and listed.
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_BLOCK_PINS_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_BLOCK_PINS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/blocks/pointer_blocks.h"
#include "allocator/heap/block_heap.h"
#include "allocator/values/block_pin.h"

namespace stratalloc {

class BlockPins {
 public:
  explicit BlockPins(const BlockHeap& heap) : heap_(heap) {}

  // ---- taken, and taken back ----------------------------------------------

  // Of the block that holds `address`. No pin if none does, or if it is
  // transient.
  // REQUIRES: its bytes are on the device and stay until this returns (pinned
  // by an operator, say).
  BlockPin Pin(Address address, PinReason reason);
  BlockPin Pin(Block& block, PinReason reason);
  // False: the block has been freed, or `pin` is none. `unobserved`: nobody saw
  // on which streams the block was used: before it leaves every device is
  // waited for.
  bool Unpin(const BlockPin& pin, bool unobserved);
  // A block is freed: the streams that used it are not known, and it has no pin
  // left.
  void Drop(Block& block) {
    if (__builtin_expect(block.pins.any(), 0)) DropUnobserved(block);
  }

  // ---- pointers -----------------------------------------------------------

  // Is the block that holds `address` pinned, but for a collective, which ends
  // by itself? One that data_ptr() gave away is the newest of these from now
  // on: whoever asks is about to give it away again.
  bool KeepsPointer(Address address);
  // Of the blocks that data_ptr() gave away the newest keep that pin: at most
  // `count`, and with more than one at most `bytes`. False: all do.
  bool DropOldPointers(Bytes bytes, std::size_t count);
  // The block is allocated no more: it is no pointer's.
  void ForgetPointer(Block& block);

  // ---- what there is ------------------------------------------------------

  // Has the block of `pin` not been freed, and is it pinned for that reason?
  bool IsPinned(const BlockPin& pin) const { return Of(pin) != nullptr; }
  // One entry per block and reason.
  std::vector<PinnedBytes> All() const;
  // `nullptr` if all is well, else what is not.
  const char* Check() const;

 private:
  // The block of a pin that holds; else nullptr.
  Block* Of(const BlockPin& pin) const;
  // One pin less for that reason. REQUIRES: it has one.
  void TakeBack(Block& block, PinReason reason, bool unobserved);
  void DropUnobserved(Block& block);
  void DropAll(Block& block);
  static void NoteUnobserved(const Block& block);

  const BlockHeap& heap_;
  PointerBlocks pointers_;
  std::uint64_t serial_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_BLOCK_PINS_H_
