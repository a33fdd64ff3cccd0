// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: captures that torch did not route here:
// cudaStreamBeginCapture by whoever likes. Only the driver knows of them. It is
// asked about streams other than the default one, which cannot capture: by the
// guard of an operator with evictable operands and by a malloc inside one, when
// a block with recorded streams is freed, and about every stream that an
// eviction is going to fence.
//
// Once one is noticed, it is looked for as a routed one is (CapturingLocked),
// until it is over. What it used stays until it is freed: a handle whose last
// block goes drops its pin. An eviction asks again after it has recorded its
// event.
//
// A stream that somebody may destroy (external_streams.h) is asked while it is
// known to live: by whoever uses it, and, once it was seen to capture, until
// the next call here sees that over.
//
// Failures that remain: a capture that begins between a question and what it
// was asked for, where that is no event; streams that no operator used, as with
// routes (private_pool.h), an external one also before its first operator
// inside; an external one that is destroyed after its capture and before any
// call here.
#include <algorithm>

#include "allocator/device_allocator.h"

namespace stratalloc {

bool DeviceAllocator::SomeCapture(std::uint64_t streams) const {
  streams = streams_.MayAsk(streams);
  if (streams >> StreamTable::kOverflowBit != 0) {
    streams = streams_.MayAsk(~std::uint64_t{0});
  }
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if (!streams_.Has(bit)) break;
    if ((streams >> bit & 1) != 0 &&
        device_.IsCapturing(streams_.StreamOf(bit))) {
      return true;
    }
  }
  return false;
}

bool DeviceAllocator::SomeOwnCapture() const {
  for (int bit = 0; bit < StreamTable::kOverflowBit && streams_.Has(bit);
       ++bit) {
    const StreamId stream = streams_.StreamOf(bit);
    if (!IsElsewhere(stream) && !ExternalStreams::Has(stream) &&
        device_.IsCapturing(stream)) {
      return true;
    }
  }
  return false;
}

void DeviceAllocator::NoteCapture(StreamId stream) {
  MutexLock lock(mutex_);
  NoteCaptureLocked(stream);
}

bool DeviceAllocator::NoteCaptureLocked(StreamId stream) {
  if (!routes_.NoteCapture(stream)) return false;
  NoteRoutesLocked();
  return true;
}

bool DeviceAllocator::CapturesHereLocked(StreamId stream) {
  return routes_.IsOfThisThread() || device_.IsCapturing(stream);
}

DeviceAllocator::OthersCaptures DeviceAllocator::LookAtCaptures() {
  OthersCaptures seen;
  if (MayCapture()) {
    MutexLock lock(mutex_);
    seen.under_way = !MayEvictLocked() && !routes_.IsOfThisThread();
  }
  seen.times_over = routes_.times_over();
  return seen;
}

void DeviceAllocator::KeepUntilFreed(HandleEntry& operand) {
  MutexLock lock(mutex_);
  private_pools_.KeepUntilFreed(operand);
}

void DeviceAllocator::KeepMadeLocked(const Block& block) {
  if (!NoteCaptureLocked(block.segment->pool->key().stream)) return;
  ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
    mutex_.AssertHeld();
    private_pools_.KeepUntilFreed(handle.entry());
  });
}

}  // namespace stratalloc
