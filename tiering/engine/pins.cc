// SPDX-License-Identifier: Apache-2.0
// Engine: pins that outlast an operator (allocator/values/block_pin.h). A pin
// is taken inside an operator of its own, which brings the bytes back and keeps
// them until the pin does.
#include <algorithm>

#include "allocator/blocks/operator_thread.h"
#include "allocator/state/pin_poll.h"
#include "tiering/engine/engine.h"

namespace stratalloc {
namespace {

// Nobody says when an address of data_ptr() is used for the last time, and many
// are only compared. So the promise is best effort: of what was asked for
// lately this part of the device stays, until somebody would be refused
// (evict.cc).
constexpr Bytes kPointerShare = 8;
// Pins on small blocks cost more memory than the blocks do.
constexpr std::size_t kMostPointers = 4096;

bool IsPinnedHere(const OperatorThread& thread, const HandleUse& use) {
  bool pinned = false;
  thread.ForEachPin([&](const HandleUse& one) { pinned |= &one == &use; });
  return pinned;
}

}  // namespace

Status Engine::PinBlocks(const char* name, PinReason reason,
                         std::span<const AddressRange> ranges,
                         std::span<BlockPin> out) {
  std::fill(out.begin(), out.end(), BlockPin{});
  if (off()) return {};
  std::vector<Access> accesses;
  for (const AddressRange& range : ranges) {
    BlockView block;
    DeviceAllocator* const device = DeviceOf(range.address);
    if (device != nullptr && device->FindLive(range.address, &block)) {
      accesses.push_back({block.address, block.bytes, false});
    }
  }
  if (accesses.empty()) return {};
  STRATALLOC_RETURN_IF_ERROR(EnterOperator(kDefaultStream, name, accesses));
  // Whoever uses the pointer does so on streams that nobody can tell.
  Status status;
  for (const TieredDevice* state : movers_) {
    if (!status) break;
    DeviceAllocator& device = *state->allocator;
    const auto here = [&](const Access& access) {
      return device.Contains(access.address);
    };
    if (std::any_of(accesses.begin(), accesses.end(), here)) {
      status = device.DrainArrivals();
    }
  }
  for (std::size_t i = 0; i < ranges.size() && status; ++i) {
    DeviceAllocator* const device = DeviceOf(ranges[i].address);
    if (device == nullptr) continue;
    out[i] = device->PinBlock(ranges[i].address, reason);
  }
  LeaveOperator();
  return status;
}

void Engine::UnpinBlock(const BlockPin& pin, bool unobserved) {
  if (off()) return;
  DeviceAllocator* const device = DeviceOf(pin.address);
  if (device == nullptr) return;
  if (!device->UnpinBlock(pin, unobserved)) return;
  unpinned_.fetch_add(1, std::memory_order_relaxed);
  // Whoever polls is about to look itself, perhaps under the arbiter.
  if (!PinPoll::IsRunning() && admission_.crowded()) admission_.NoteChange();
}

bool Engine::MustHandOut(Address address) {
  DeviceAllocator* const device = DeviceOf(address);
  if (off() || device == nullptr ||
      address >= device->table().evictable_end()) {
    return false;
  }
  const HandleRef handle = device->table().RefOf(address);
  if (handle.stays()) return false;
  const OperatorThread& thread = OperatorThread::ThisThread();
  // An operator that asks for the address of its own operand, as most do.
  if (IsPinnedHere(thread, handle.use())) return false;
  return !device->KeepsPointer(address);
}

void Engine::HandOut(Address address) {
  if (!MustHandOut(address)) return;
  DeviceAllocator* const device = DeviceOf(address);
  BlockView block;
  if (!device->FindLive(address, &block)) return;
  const AddressRange range{block.address, block.bytes};
  BlockPin pin;
  // Best effort: without room the address is as good as it is, and who asks for
  // one does not wait for that.
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.hurried = true;
  const Status pinned =
      PinBlocks("data_ptr()", PinReason::kPointer, {&range, 1}, {&pin, 1});
  thread.hurried = false;
  if (!pinned) return;
  device->DropOldPointers(device->limit() / kPointerShare, kMostPointers);
}

}  // namespace stratalloc
