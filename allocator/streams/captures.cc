// SPDX-License-Identifier: Apache-2.0
#include "allocator/streams/captures.h"

#include <bit>

#include "allocator/heap/pool.h"
#include "allocator/memory/external_streams.h"

namespace stratalloc {

bool Captures::UnderWay() {
  const bool capturing = p_.private_pools.Capturing();
  Publish();  // what is over is forgotten
  return capturing;
}

bool Captures::MayEvict() {
  Settle();
  // An open one's stream captures, or is about to.
  return !p_.routes.SomeOpen() && !UnderWay();
}

bool Captures::Some(std::uint64_t streams) const {
  streams = p_.streams.MayAsk(streams);
  if (streams >> StreamTable::kOverflowBit != 0) {
    streams = p_.streams.MayAsk(~std::uint64_t{0});
  }
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if (!p_.streams.Has(bit)) break;
    if ((streams >> bit & 1) != 0 &&
        p_.device.IsCapturing(p_.streams.StreamOf(bit))) {
      return true;
    }
  }
  return false;
}

PoolId Captures::RouteOf(StreamId stream) {
  const PoolId id = p_.private_pools.RouteOf(stream);
  Publish();
  return id;
}

void Captures::Settle() {
  p_.private_pools.Settle();
  Publish();
}

bool Captures::Note(StreamId stream, bool works_on_it) {
  if (!p_.routes.NoteCapture(stream, works_on_it)) return false;
  Publish();
  return true;
}

void Captures::Publish() {
  p_.slow.Set(SlowReason::kPoolFilter,
              p_.routes.MayRoute() || p_.frees.some_put_off());
}

void Captures::KeepMade(const Block& block) {
  if (!Note(block.segment->pool->key().stream) && !p_.routes.IsOfThisThread()) {
    return;
  }
  ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
    p_.private_pools.KeepUntilFreed(handle.use());
  });
}

bool Captures::PutOff(Block* block) {
  for (const StreamId stream : block->streams) Note(stream, false);
  if (!UnderWay()) return false;
  p_.frees.PutOff(block);
  Publish();
  return true;
}

std::uint64_t Captures::OwnBit(StreamId stream) {
  // What is captured runs later, perhaps on another stream.
  if (UnderWay()) return 0;
  const int bit = p_.streams.BitOf(stream);
  return bit >= StreamTable::kOverflowBit ? 0 : std::uint64_t{1} << bit;
}

StreamsIdle Captures::AskStreams() {
  return [&parts = p_, capturing = UnderWay(), asked = std::uint64_t{0},
          idle = std::uint64_t{0}](std::uint64_t streams) mutable {
    if (capturing) return false;
    streams = parts.streams.MayAsk(streams);
    if (streams >> StreamTable::kOverflowBit != 0) return false;
    for (std::uint64_t left = streams & ~asked; left != 0; left &= left - 1) {
      const int bit = std::countr_zero(left);
      if (parts.device.IsIdle(parts.streams.StreamOf(bit))) {
        idle |= std::uint64_t{1} << bit;
      }
    }
    asked |= streams;
    return (streams & ~idle) == 0;
  };
}

}  // namespace stratalloc
