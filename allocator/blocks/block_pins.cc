// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/block_pins.h"

#include <algorithm>
#include <utility>

#include "allocator/state/frame_accounts.h"

namespace stratalloc {

BlockPin BlockPins::Pin(Address address, PinReason reason) {
  Block* const block = heap_.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kAllocated) return {};
  return Pin(*block, reason);
}

BlockPin BlockPins::Pin(Block& block, PinReason reason) {
  // What never leaves needs no pin; but what a rule keeps may get another place
  // when the rule is taken back, and then its pins tell who has its address.
  // Not that of a pointer, which is asked for again.
  if (!block.segment->evictable() &&
      (reason == PinReason::kPointer ||
       block.segment->pool->key().lifetime != LifetimeClass::kStaying)) {
    return {};
  }
  if (!block.pins.any()) {
    ForEachHandleOf(block, [](HandleRef handle, Bytes) {
      handle.entry().pins.fetch_add(1);
    });
    block.pins.serial = ++serial_;
    block.streams_noted = true;  // its free takes the whole way
  }
  // Nobody takes an export back, and of pointers the oldest goes, whoever asked
  // for it: one pin each will do.
  std::uint32_t& count = block.pins.of(reason);
  if (reason == PinReason::kPointer) {
    count == 0 ? pointers_.Add(block) : pointers_.Renew(block);
    count = 1;
  } else if (reason != PinReason::kExported || count == 0) {
    ++count;
  }
  return {block.address, block.pins.serial, reason};
}

Block* BlockPins::Of(const BlockPin& pin) const {
  Block* const block = heap_.Find(pin.address);
  if (pin.serial == 0 || block == nullptr ||
      block->state != BlockState::kAllocated ||
      block->pins.serial != pin.serial || block->pins.of(pin.reason) == 0) {
    return nullptr;
  }
  return block;
}

bool BlockPins::Unpin(const BlockPin& pin, bool unobserved) {
  Block* const block = Of(pin);
  if (block == nullptr) return false;
  TakeBack(*block, pin.reason, unobserved);
  return true;
}

void BlockPins::TakeBack(Block& block, PinReason reason, bool unobserved) {
  if (reason == PinReason::kPointer) {
    ForgetPointer(block);
  } else {
    --block.pins.of(reason);
  }
  if (unobserved) NoteUnobserved(block);
  const auto& counts = block.pins.count;
  if (std::all_of(counts.begin(), counts.end(),
                  [](std::uint32_t n) { return n == 0; })) {
    DropAll(block);
  }
}

void BlockPins::DropUnobserved(Block& block) {
  NoteUnobserved(block);
  DropAll(block);
}

void BlockPins::DropAll(Block& block) {
  ForgetPointer(block);
  block.pins = {};
  ForEachHandleOf(
      block, [](HandleRef handle, Bytes) { handle.entry().pins.fetch_sub(1); });
}

void BlockPins::ForgetPointer(Block& block) {
  if (std::exchange(block.pins.of(PinReason::kPointer), 0) != 0) {
    pointers_.Remove(block);
  }
}

void BlockPins::NoteUnobserved(const Block& block) {
  ForEachHandleOf(block, [](HandleRef handle, Bytes) {
    // On which streams, of which devices: nobody saw. Nor whether it wrote, but
    // a clean drop compares checksums, and most who ask for an address read.
    handle.use().NoteUnseen(std::uint64_t{1} << StreamTable::kGraphBit);
  });
}

bool BlockPins::DropOldPointers(Bytes bytes, std::size_t count) {
  bool dropped = false;
  while (pointers_.count() > count ||
         (pointers_.count() > 1 && pointers_.bytes() > bytes)) {
    TakeBack(*pointers_.oldest(), PinReason::kPointer, /*unobserved=*/true);
    dropped = true;
  }
  return dropped;
}

bool BlockPins::KeepsPointer(Address address) {
  Block* const block = heap_.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kAllocated) return false;
  if (block->pins.of(PinReason::kPointer) != 0) {
    pointers_.Renew(*block);
    return true;
  }
  for (int i = 0; i < kPinReasons; ++i) {
    const auto reason = static_cast<PinReason>(i);
    if (reason != PinReason::kCollective && block->pins.of(reason) != 0) {
      return true;
    }
  }
  return false;
}

std::vector<PinnedBytes> BlockPins::All() const {
  std::vector<PinnedBytes> pinned;
  for (const auto& [base, segment] : heap_.segments()) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state != BlockState::kAllocated || !b->pins.any()) continue;
      for (int i = 0; i < kPinReasons; ++i) {
        const auto reason = static_cast<PinReason>(i);
        if (b->pins.of(reason) != 0) {
          pinned.push_back(
              {FrameAccounts::Get().Resolved(b->charge), reason, b->size});
        }
      }
    }
  }
  return pinned;
}

const char* BlockPins::Check() const {
  std::size_t pointers = 0;
  for (const auto& [base, segment] : heap_.segments()) {
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->pins.of(PinReason::kPointer) == 0) continue;
      if (b->state != BlockState::kAllocated) {
        return "what data_ptr() gave away is allocated";
      }
      ++pointers;
    }
  }
  return pointers == pointers_.count() && pointers_.CheckInvariants()
             ? nullptr
             : "what data_ptr() gave away is listed";
}

}  // namespace stratalloc
