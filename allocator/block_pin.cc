// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: pins on blocks that outlast an operator.
#include "allocator/block_pin.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"

namespace stratalloc {
namespace {

std::atomic<PinPoll::Poll> current{nullptr};
std::atomic<PinPoll::Asked> under_way{nullptr};
thread_local bool running = false;

}  // namespace

void PinPoll::Use(Poll poll, Asked asked) {
  under_way.store(asked, std::memory_order_release);
  current.store(poll, std::memory_order_release);
}

void PinPoll::Run() {
  const Poll poll = current.load(std::memory_order_acquire);
  if (poll == nullptr) return;
  running = true;
  poll();
  running = false;
}

bool PinPoll::UnderWay() {
  const Asked asked = under_way.load(std::memory_order_acquire);
  return asked != nullptr && asked() != 0;
}

bool PinPoll::IsRunning() { return running; }

BlockPin DeviceAllocator::PinBlock(Address address, PinReason reason) {
  MutexLock lock(mutex_);
  Block* const block = heap_.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kAllocated) return {};
  return PinBlockLocked(block, reason);
}

BlockPin DeviceAllocator::PinBlockLocked(Block* block, PinReason reason) {
  // What never leaves needs no pin.
  if (!block->segment->evictable()) return {};
  if (!block->pins.any()) {
    ForEachHandleOf(*block, [](HandleRef handle, Bytes) {
      handle.entry().pins.fetch_add(1);
    });
    block->pins.serial = ++pin_serial_;
    block->streams_noted = true;  // its free takes the whole way
  }
  // Nobody takes an export back, and of pointers the oldest goes, whoever asked
  // for it: one pin each will do.
  std::uint32_t& count = block->pins.of(reason);
  if (reason == PinReason::kPointer) {
    count == 0 ? pointers_.Add(*block) : pointers_.Renew(*block);
    count = 1;
  } else if (reason != PinReason::kExported || count == 0) {
    ++count;
  }
  return {block->address, block->pins.serial, reason};
}

bool DeviceAllocator::IsPinned(const BlockPin& pin) {
  MutexLock lock(mutex_);
  return PinnedLocked(pin) != nullptr;
}

Block* DeviceAllocator::PinnedLocked(const BlockPin& pin) {
  Block* const block = heap_.Find(pin.address);
  if (pin.serial == 0 || block == nullptr ||
      block->state != BlockState::kAllocated ||
      block->pins.serial != pin.serial || block->pins.of(pin.reason) == 0) {
    return nullptr;
  }
  return block;
}

bool DeviceAllocator::UnpinBlock(const BlockPin& pin, bool unobserved) {
  MutexLock lock(mutex_);
  Block* const block = PinnedLocked(pin);
  if (block == nullptr) return false;
  TakePinBackLocked(block, pin.reason, unobserved);
  return true;
}

void DeviceAllocator::TakePinBackLocked(Block* block, PinReason reason,
                                        bool unobserved) {
  if (reason == PinReason::kPointer) {
    ForgetPointerLocked(*block);
  } else {
    --block->pins.of(reason);
  }
  if (unobserved) NoteUnobservedLocked(*block);
  const auto& counts = block->pins.count;
  if (std::all_of(counts.begin(), counts.end(),
                  [](std::uint32_t n) { return n == 0; })) {
    DropPinsLocked(block);
  }
}

void DeviceAllocator::ForgetPointerLocked(Block& block) {
  if (std::exchange(block.pins.of(PinReason::kPointer), 0) != 0) {
    pointers_.Remove(block);
  }
}

bool DeviceAllocator::DropOldPointers(Bytes bytes, std::size_t count) {
  MutexLock lock(mutex_);
  bool dropped = false;
  while (pointers_.count() > count ||
         (pointers_.count() > 1 && pointers_.bytes() > bytes)) {
    TakePinBackLocked(pointers_.oldest(), PinReason::kPointer,
                      /*unobserved=*/true);
    dropped = true;
  }
  return dropped;
}

void DeviceAllocator::NoteUnobservedLocked(const Block& block) {
  ForEachHandleOf(block, [](HandleRef handle, Bytes) {
    // On which streams, of which devices: nobody saw. Nor whether it wrote, but
    // a clean drop compares checksums, and most who ask for an address read.
    handle.entry().fence.fetch_or(std::uint64_t{1} << StreamTable::kGraphBit);
  });
}

void DeviceAllocator::DropPinsLocked(Block* block) {
  ForgetPointerLocked(*block);
  block->pins = {};
  ForEachHandleOf(*block, [](HandleRef handle, Bytes) {
    handle.entry().pins.fetch_sub(1);
  });
}

bool DeviceAllocator::KeepsPointer(Address address) {
  MutexLock lock(mutex_);
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

std::vector<PinnedBytes> DeviceAllocator::Pinned() {
  MutexLock lock(mutex_);
  std::vector<PinnedBytes> pinned;
  for (const auto& [base, segment] : heap_.segments()) {
    if (!segment->evictable()) continue;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (b->state != BlockState::kAllocated || !b->pins.any()) continue;
      for (int i = 0; i < kPinReasons; ++i) {
        const auto reason = static_cast<PinReason>(i);
        if (b->pins.of(reason) != 0) {
          pinned.push_back({b->charge, reason, b->size});
        }
      }
    }
  }
  return pinned;
}

}  // namespace stratalloc
