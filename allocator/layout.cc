// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: how address space is divided, mapped and unmapped.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {
namespace {

// A new segment is an eighth of the card, so that a handful serve a pool and
// hundreds fit into a region; never below Options::segment_least.
constexpr Bytes kSegmentFraction = 8;

}  // namespace

Pool& DeviceAllocator::PoolLocked(const PoolKey& key) {
  if (Pool* pool = heap_.FindPool(key)) return *pool;
  private_pools_.NoteStream(key.stream);
  return heap_.PoolOf(key);
}

Segment* DeviceAllocator::AddSegmentLocked(Pool& pool, Bytes size) {
  // Its memory comes from elsewhere, and without the lock (FetchPlain).
  if (SourceLocked(pool.key()) != nullptr) return nullptr;
  HandleRegion& region = table_.region(
      options_.tiering && !pool.key().owner.is_private(), pool.key().kind);
  const Bytes least = RoundUp(size, region.handle_bytes);
  const Bytes wanted = RoundUp(
      std::max({size, options_.segment_least, capacity_ / kSegmentFraction}),
      region.handle_bytes);
  Segment* segment =
      heap_.AddSegment(pool, region, NoSplitLocked(pool) ? least : wanted);
  if (segment != nullptr) return segment;
  DropEmptySegmentsLocked();
  return heap_.AddSegment(pool, region, least);
}

void DeviceAllocator::DropEmptySegmentsLocked() {
  EmptyBinsLocked();
  const StreamsIdle idle = AskStreamsLocked();
  for (const auto& [key, pool] : heap_.pools()) {
    heap_.DropSegments(*pool, [&](Segment& segment) {
      mutex_.AssertHeld();
      return !segment.plain && pages_.DropKept(*segment.region, segment.base,
                                               segment.end(), idle);
    });
  }
}

Address DeviceAllocator::BusyPlaceLocked(Address lo, Address hi,
                                         std::uint64_t own,
                                         const StreamsIdle& idle) {
  HandleRegion& region = *heap_.BlockAt(lo)->segment->region;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    const HandleEntry& entry = region.entries[i];
    if (entry.state.load() != HandleState::kUnmapped ||
        entry.physical == nullptr || entry.physical->free ||
        idle(entry.fence.load())) {
      continue;
    }
    if (FreeElsewhereLocked(entry.physical, lo, hi, own, idle).region ==
        nullptr) {
      return region.AddressOf(i);
    }
  }
  return 0;
}

bool DeviceAllocator::KeepsMappings(const Segment& segment) {
  return !segment.plain && !segment.pool->key().owner.is_private();
}

PageStore::Mapped DeviceAllocator::MapLocked(Segment& segment, Address lo,
                                             Address hi, Bytes limit,
                                             const StreamsIdle& idle) {
  HandleRegion& region = *segment.region;
  PageStore::Answer answer =
      pages_.Map(region, lo, hi, limit, KeepsMappings(segment),
                 {OwnBitLocked(segment.pool->key().stream), idle});
  if (answer.error) driver_error_ = std::move(answer.error);
  if (answer.lacking > 0) lacking_ = answer.lacking;
  if (answer.mapped == PageStore::Mapped::kYes) {
    heap_.NoteMapped(segment, answer.arrived.size());
    stats_.reserved_bytes.For(region.kind, [&](Stat& s) {
      s.Increase(answer.arrived.size() * region.handle_bytes);
    });
    stats_.num_device_alloc += static_cast<std::int64_t>(answer.arrived.size());
    traces_.Mapped(TraceAction::kSegmentMap, answer.arrived, nullptr);
  }
  heap_.Refile(
      segment, RoundDown(lo - region.base, region.handle_bytes) + region.base,
      std::min(segment.end(),
               RoundUp(hi - region.base, region.handle_bytes) + region.base));
  return answer.mapped;
}

}  // namespace stratalloc
