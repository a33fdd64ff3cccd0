// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what history hears of blocks, mappings and evictions.
#include <algorithm>
#include <utility>

#include "allocator/device_allocator.h"
#include "allocator/settings.h"

namespace stratalloc {

void DeviceAllocator::ConfigureHistory(const History::Options& options) {
  MutexLock lock(mutex_);
  history_.Configure(options);
  NoteHistoryLocked();
}

void DeviceAllocator::NoteTracker() {
  MutexLock lock(mutex_);
  NoteHistoryLocked();
}

std::vector<TraceEvent> DeviceAllocator::Traces() {
  const std::vector<History::Entry> entries = [&] {
    MutexLock lock(mutex_);
    return history_.Copy();
  }();
  return History::Events(entries);
}

Bytes DeviceAllocator::RecordOutOfMemory(StreamId stream, Bytes bytes,
                                         Bytes free_bytes) {
  const Bytes rounded = Settings::Get().Round(bytes);
  MutexLock lock(mutex_);
  if (!history_.records()) return rounded;
  TracePoint event;
  event.action = TraceAction::kOutOfMemory;
  event.device = device_.index();
  event.address = free_bytes;
  event.bytes = rounded;
  event.stream = stream;
  event.pool = routes_.MayRoute() ? RouteLocked(stream) : PoolId{};
  history_.Record(std::move(event), nullptr, nullptr);
  return rounded;
}

void DeviceAllocator::RecordSnapshot(PoolId pool, Bytes active) {
  MutexLock lock(mutex_);
  if (!history_.records()) return;
  TracePoint event;
  event.action = TraceAction::kSnapshot;
  event.device = device_.index();
  event.bytes = active;
  event.stream = StreamId{0};
  event.pool = pool;
  history_.Record(std::move(event), nullptr, nullptr);
}

void DeviceAllocator::NoteHistoryLocked() {
  SetSlowReasonLocked(SlowReason::kHistory, history_.attentive());
}

void DeviceAllocator::RecordLocked(TraceAction action, Address address,
                                   Bytes bytes, const Segment& segment,
                                   const HistoryContext& fallback,
                                   const char* label,
                                   std::optional<TraceAction> then) {
  if (!history_.records()) return;
  TracePoint event;
  event.action = action;
  event.device = device_.index();
  event.address = address;
  event.bytes = bytes;
  event.stream = segment.pool->key().stream;
  event.pool = segment.pool->key().owner;
  history_.Record(std::move(event), fallback, label, then);
}

void DeviceAllocator::RecordMappedLocked(TraceAction action,
                                         const std::vector<HandleRef>& handles,
                                         const char* label) {
  if (!history_.records()) return;
  for (std::size_t i = 0; i < handles.size();) {
    Segment& segment = heap_.SegmentOf(handles[i]);
    const Address base = handles[i].address();
    Address end = base;
    while (i < handles.size() && handles[i].address() == end &&
           end < segment.end()) {
      end += handles[i++].bytes();
    }
    TraceAction what = action;
    if (action == TraceAction::kSegmentMap) {
      history_.RememberSegment(segment.base);
      if (segment.plain) what = TraceAction::kSegmentAlloc;
    } else if (segment.plain) {
      what = TraceAction::kSegmentFree;
    }
    RecordLocked(what, base, end - base, segment,
                 history_.SegmentContext(segment.base), label);
  }
}

void DeviceAllocator::RecordAllocLocked(const Block& block) {
  history_.RememberBlock(block.address);
  RecordPiecesLocked(TraceAction::kAlloc, block, 0, ~Address{0}, nullptr);
}

void DeviceAllocator::RecordFreeLocked(TraceAction action, const Block& block) {
  RecordPiecesLocked(action, block, 0, ~Address{0}, nullptr);
  if (action != TraceAction::kFreeCompleted) return;
  // The last context that is forgotten may have been what kept it on.
  if (history_.ForgetBlock(block.address)) NoteHistoryLocked();
}

void DeviceAllocator::RecordFreeAtOnceLocked(const Block& block) {
  if (MayBeInPiecesLocked(block)) {
    RecordFreeLocked(TraceAction::kFreeRequested, block);
    RecordFreeLocked(TraceAction::kFreeCompleted, block);
    return;
  }
  RecordLocked(TraceAction::kFreeRequested, block.address, block.requested,
               *block.segment, history_.BlockContext(block.address), nullptr,
               TraceAction::kFreeCompleted);
  if (history_.ForgetBlock(block.address)) NoteHistoryLocked();
}

void DeviceAllocator::RecordPiecesLocked(TraceAction action, const Block& block,
                                         Address lo, Address hi,
                                         const char* label) {
  if (!history_.records()) return;
  const HistoryContext context = history_.BlockContext(block.address);
  if (!MayBeInPiecesLocked(block)) {  // nearly always
    if (block.end() >= lo && block.address <= hi) {
      RecordLocked(action, block.address, block.requested, *block.segment,
                   context, label);
    }
    return;
  }
  for (const Piece& piece : PiecesLocked(block)) {
    // Pieces that touch the range count as well as those in it.
    if (piece.end < lo || piece.base > hi) continue;
    const Bytes before = piece.base - block.address;
    const Bytes requested =
        block.requested > before
            ? std::min(piece.end - piece.base, block.requested - before)
            : 0;
    RecordLocked(action, piece.base, requested, *block.segment, context, label);
  }
}

bool DeviceAllocator::MayBeInPiecesLocked(const Block& block) const {
  return block.segment->region->evictable && away_ != 0;
}

std::vector<DeviceAllocator::Piece> DeviceAllocator::PiecesLocked(
    const Block& block) {
  if (!MayBeInPiecesLocked(block)) {
    return {Piece{block.address, block.end()}};
  }
  std::vector<Piece> pieces;
  Address at = block.address;
  ForEachHandleOf(block, [&](HandleRef handle, Bytes inside) {
    const HandleState state = handle.entry().state.load();
    if (state != HandleState::kUnmapped && !IsAway(state)) {
      if (!pieces.empty() && pieces.back().end == at) {
        pieces.back().end += inside;
      } else {
        pieces.push_back(Piece{at, at + inside});
      }
    }
    at += inside;
  });
  return pieces;
}

void DeviceAllocator::RecordLiveOverLocked(HandleRef handle, bool allocated,
                                           const char* label) {
  if (!history_.records()) return;
  const Address lo = handle.address(), hi = lo + handle.bytes();
  for (Block* b = heap_.BlockAt(lo); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    const bool pending = b->state == BlockState::kPending;
    if (allocated) RecordPiecesLocked(TraceAction::kAlloc, *b, lo, hi, label);
    if (allocated == pending) {
      RecordPiecesLocked(TraceAction::kFreeRequested, *b, lo, hi, label);
    }
    if (!allocated) {
      RecordPiecesLocked(TraceAction::kFreeCompleted, *b, lo, hi, label);
    }
  }
}

}  // namespace stratalloc
