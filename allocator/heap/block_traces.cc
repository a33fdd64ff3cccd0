// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/block_traces.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/events/event_recorder.h"
#include "allocator/state/frame_accounts.h"

namespace stratalloc {

TracePoint BlockTraces::PointOf(TraceAction action, Address address,
                                Bytes bytes, const Segment& segment,
                                const Block* block) {
  TracePoint event;
  event.action = action;
  event.device = device_;
  event.address = address;
  event.bytes = bytes;
  event.stream = segment.pool->key().stream;
  event.pool = segment.pool->key().owner;
  event.pool_number = NumberOf(*segment.pool);
  if (block != nullptr) {
    FrameAccounts& frames = FrameAccounts::Get();
    event.scope = block->charge.scope;
    event.category = frames.Resolved(block->charge).category;
    event.in_frame = frames.OpenFrame(block->charge) != 0;
    if (sites_) event.site = block->site;
  }
  return event;
}

void BlockTraces::Record(TraceAction action, Address address, Bytes bytes,
                         Bytes size, const Segment& segment, const Block* block,
                         const HistoryContext& fallback, TraceCause cause,
                         std::optional<TraceAction> then) {
  if (!history_.records()) return;
  TracePoint event = PointOf(action, address, bytes, segment, block);
  event.size = size;
  event.cause = cause;
  history_.Record(std::move(event), fallback, then);
}

void BlockTraces::Annotate(const Block& block, const std::string& label) {
  history_.Annotate(PointOf(TraceAction::kAnnotate, block.address,
                            block.requested, *block.segment, &block),
                    label);
}

void BlockTraces::Relabelled(const Block& block) {
  if (!EventRecorder::on()) return;
  TracePoint event = PointOf(TraceAction::kAlloc, block.address,
                             block.requested, *block.segment, &block);
  event.size = block.size;
  history_.RecordRelabel(event);
}

void BlockTraces::FrameEnded(FrameId id, ScopeId scope) {
  if (!EventRecorder::on()) return;
  TracePoint event;
  event.device = device_;
  event.address = id;
  event.scope = scope;
  history_.RecordFrameEnd(event);
}

std::uint16_t BlockTraces::NumberOf(Pool& pool) {
  if (pool.event_number.has_value() || !EventRecorder::on()) {
    return pool.event_number.value_or(0);
  }
  const PoolKey& key = pool.key();
  std::string name = std::to_string(static_cast<int>(Raw(device_)));
  for (const std::uint64_t value :
       {StreamValue(key.stream), key.owner.graph, key.owner.user}) {
    name += ' ' + std::to_string(value);
  }
  pool.event_number = EventRecorder::NamePool(name);
  return *pool.event_number;
}

void BlockTraces::Mapped(TraceAction action,
                         const std::vector<HandleRef>& handles,
                         TraceCause cause) {
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
    Record(what, base, end - base, 0, segment, nullptr,
           history_.SegmentContext(segment.base), cause);
  }
}

void BlockTraces::Alloc(const Block& block) {
  history_.RememberBlock(block.address);
  RecordPieces(TraceAction::kAlloc, block, 0, ~Address{0}, TraceCause::kNone);
}

bool BlockTraces::Free(TraceAction action, const Block& block) {
  RecordPieces(action, block, 0, ~Address{0}, TraceCause::kNone);
  if (action != TraceAction::kFreeCompleted) return false;
  if (heap_.MayBeAway(block)) FreedAway(block);
  return history_.ForgetBlock(block.address);
}

void BlockTraces::FreedAway(const Block& block) {
  if (!EventRecorder::on()) return;
  const std::vector<Piece> pieces = Pieces(block);
  if (!pieces.empty() && pieces.front().base == block.address) return;
  TracePoint event = PointOf(TraceAction::kFreeCompleted, block.address,
                             block.requested, *block.segment, &block);
  event.size = block.size;
  history_.RecordFreedAway(event);
}

bool BlockTraces::FreeAtOnce(const Block& block) {
  if (heap_.MayBeAway(block)) {
    Free(TraceAction::kFreeRequested, block);
    return Free(TraceAction::kFreeCompleted, block);
  }
  Record(TraceAction::kFreeRequested, block.address, block.requested,
         block.size, *block.segment, &block,
         history_.BlockContext(block.address), TraceCause::kNone,
         TraceAction::kFreeCompleted);
  return history_.ForgetBlock(block.address);
}

void BlockTraces::RecordPieces(TraceAction action, const Block& block,
                               Address lo, Address hi, TraceCause cause) {
  if (!history_.records()) return;
  const HistoryContext context = history_.BlockContext(block.address);
  if (!heap_.MayBeAway(block)) {  // nearly always
    if (block.end() >= lo && block.address <= hi) {
      Record(action, block.address, block.requested, block.size, *block.segment,
             &block, context, cause);
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
    Record(action, piece.base, requested, piece.end - piece.base,
           *block.segment, &block, context, cause);
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

void BlockTraces::LiveOver(HandleRef handle, bool allocated, TraceCause cause) {
  if (!history_.records()) return;
  const Address lo = handle.address(), hi = lo + handle.bytes();
  for (Block* b = heap_.BlockAt(lo); b != nullptr && b->address < hi;
       b = b->next) {
    if (!IsLive(b->state)) continue;
    const bool pending = b->state == BlockState::kPending;
    if (allocated) RecordPieces(TraceAction::kAlloc, *b, lo, hi, cause);
    if (allocated == pending) {
      RecordPieces(TraceAction::kFreeRequested, *b, lo, hi, cause);
    }
    if (!allocated) {
      RecordPieces(TraceAction::kFreeCompleted, *b, lo, hi, cause);
    }
  }
}

}  // namespace stratalloc
