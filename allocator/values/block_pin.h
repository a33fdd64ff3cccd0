// SPDX-License-Identifier: Apache-2.0
// Pins on blocks that outlast an operator: the whole block stays on the device,
// at its address, until it is freed or every pin on it is taken back. For uses
// that no operator shows: pointers that left torch, work that goes on after the
// call returned, and what a program asked for.
//
// A pin is a value. It names the block's life by a serial number, so that a pin
// on a block that has been freed meanwhile means nothing, whoever lives at its
// address now. The pins of a block are counted by reason.
//
// Invariant: a block with any pin has one pin on each of its handles for it
// (CheckInvariants compares). Plain values; BlockPins changes them under the
// device lock.
#ifndef STRATALLOC_ALLOCATOR_VALUES_BLOCK_PIN_H_
#define STRATALLOC_ALLOCATOR_VALUES_BLOCK_PIN_H_

#include <array>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

enum class PinReason : std::uint8_t {
  kShared,      // exported to another process
  kExported,    // through DLPack or __cuda_array_interface__: until it is freed
  kProgram,     // pin()
  kCollective,  // until its Work is complete
  kPointer,     // data_ptr(): the newest only, and until somebody lacks room
};
inline constexpr int kPinReasons = 5;
// "pinned by the program": the same words as StayReasonName, for people.
const char* PinReasonName(PinReason reason);

struct BlockPin {
  Address address = 0;       // the block's
  std::uint64_t serial = 0;  // 0: no pin; there was nothing that could leave
  PinReason reason = PinReason::kProgram;
};

// What a block knows of its pins.
struct PinCounts {
  std::uint64_t serial = 0;  // 0: none
  std::array<std::uint32_t, kPinReasons> count{};

  bool any() const { return serial != 0; }
  std::uint32_t& of(PinReason reason) {
    return count[static_cast<std::size_t>(reason)];
  }
  std::uint32_t of(PinReason reason) const {
    return count[static_cast<std::size_t>(reason)];
  }
};

// Pinned bytes of one owner for one reason, in blocks.
struct PinnedBytes {
  Charge charge;
  PinReason reason = PinReason::kProgram;
  Bytes bytes = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_BLOCK_PIN_H_
