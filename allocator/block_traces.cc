// SPDX-License-Identifier: Apache-2.0
#include "allocator/block_traces.h"

#include <algorithm>
#include <utility>

namespace stratalloc {

void BlockTraces::Record(TraceAction action, Address address, Bytes bytes,
                         const Segment& segment, const HistoryContext& fallback,
                         const char* label, std::optional<TraceAction> then) {
  if (!history_.records()) return;
  TracePoint event;
  event.action = action;
  event.device = device_;
  event.address = address;
  event.bytes = bytes;
  event.stream = segment.pool->key().stream;
  event.pool = segment.pool->key().owner;
  history_.Record(std::move(event), fallback, label, then);
}

void BlockTraces::Mapped(TraceAction action,
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
      if (segment.unmanaged) what = TraceAction::kSegmentAlloc;
    } else if (segment.unmanaged) {
      what = TraceAction::kSegmentFree;
    }
    Record(what, base, end - base, segment,
           history_.SegmentContext(segment.base), label);
  }
}

void BlockTraces::Alloc(const Block& block) {
  history_.RememberBlock(block.address);
  RecordPieces(TraceAction::kAlloc, block, 0, ~Address{0}, nullptr);
}

bool BlockTraces::Free(TraceAction action, const Block& block) {
  RecordPieces(action, block, 0, ~Address{0}, nullptr);
  return action == TraceAction::kFreeCompleted &&
         history_.ForgetBlock(block.address);
}

bool BlockTraces::FreeAtOnce(const Block& block) {
  if (heap_.MayBeAway(block)) {
    Free(TraceAction::kFreeRequested, block);
    return Free(TraceAction::kFreeCompleted, block);
  }
  Record(TraceAction::kFreeRequested, block.address, block.requested,
         *block.segment, history_.BlockContext(block.address), nullptr,
         TraceAction::kFreeCompleted);
  return history_.ForgetBlock(block.address);
}

void BlockTraces::RecordPieces(TraceAction action, const Block& block,
                               Address lo, Address hi, const char* label) {
  if (!history_.records()) return;
  const HistoryContext context = history_.BlockContext(block.address);
  if (!heap_.MayBeAway(block)) {  // nearly always
    if (block.end() >= lo && block.address <= hi) {
      Record(action, block.address, block.requested, *block.segment, context,
             label);
    }
    return;
  }
  for (const Piece& piece : Pieces(block)) {
    // Pieces that touch the range count as well as those in it.
    if (piece.end < lo || piece.base > hi) continue;
    const Bytes before = piece.base - block.address;
    const Bytes requested =
        block.requested > before
            ? std::min(piece.end - piece.base, block.requested - before)
            : 0;
    Record(action, piece.base, requested, *block.segment, context, label);
  }
}

std::vector<BlockTraces::Piece> BlockTraces::Pieces(const Block& block) const {
  if (!heap_.MayBeAway(block)) {
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

void BlockTraces::LiveOver(HandleRef handle, bool allocated,
                           const char* label) {
  if (!history_.records()) return;
  const Address lo = handle.address(), hi = lo + handle.bytes();
  for (Block* b = heap_.BlockAt(lo); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    const bool pending = b->state == BlockState::kPending;
    if (allocated) RecordPieces(TraceAction::kAlloc, *b, lo, hi, label);
    if (allocated == pending) {
      RecordPieces(TraceAction::kFreeRequested, *b, lo, hi, label);
    }
    if (!allocated) {
      RecordPieces(TraceAction::kFreeCompleted, *b, lo, hi, label);
    }
  }
}

}  // namespace stratalloc
