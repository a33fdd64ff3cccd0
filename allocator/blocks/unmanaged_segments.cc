// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/unmanaged_segments.h"

#include <utility>

#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

std::shared_ptr<const MemorySource> CudaMalloc(const Device& device) {
  return std::make_shared<const MemorySource>(MemorySource{
      [device](Bytes bytes, StreamId) { return device.Malloc(bytes); },
      [device](Address address) { device.FreeMalloc(address); }});
}

}  // namespace

UnmanagedSegments::UnmanagedSegments(const Parts& parts, bool tiering)
    : p_(parts),
      tiering_(tiering),
      cuda_malloc_(CudaMalloc(parts.device)),
      own_source_(parts.device.has_virtual_memory() ? nullptr : cuda_malloc_) {}

std::shared_ptr<const MemorySource> UnmanagedSegments::SourceOf(
    const PoolKey& key) const {
  if (key.owner.is_private()) {
    const PrivatePool* const owner = p_.private_pools.Find(key.owner);
    if (owner != nullptr && owner->source != nullptr) return owner->source;
  }
  if (own_source_ != nullptr) return own_source_;
  const bool leaves = tiering_ && IsEvictable(key.lifetime);
  return !leaves && Settings::Get().unmanaged_segments() ? cuda_malloc_
                                                         : nullptr;
}

UnmanagedSegments::Fetch UnmanagedSegments::BeginFetch(const PoolKey& key,
                                                       Bytes size) {
  Fetch fetch{SourceOf(key), Settings::Get().SegmentBytes(size), key};
  if (fetch.source == nullptr) return fetch;
  if (p_.pages.used_bytes() + fetch.bytes > p_.limit.Now()) return {};
  p_.pages.BeginFetch(fetch.bytes);
  return fetch;
}

void UnmanagedSegments::EndFetch(const Fetch& fetch) {
  p_.pages.EndFetch(fetch.bytes, /*came=*/false);
}

Block* UnmanagedSegments::Add(Pool& pool, const Fetch& fetch, Address address) {
  auto memory = std::make_unique<UnmanagedMemory>(fetch.source, address,
                                                  fetch.bytes, fetch.key.kind);
  HandleRegion& region = memory->region();
  Segment& segment = p_.heap.AddUnmanagedSegment(pool, region);
  p_.pages.EndFetch(region.bytes, /*came=*/true);
  p_.stats.Reserve(pool.key().owner, region.kind, region.bytes);
  if (region.bytes >= Settings::Get().max_split_size()) {
    p_.stats.oversize_segments.Increase(1);
    segment.oversize = true;
  }
  ++p_.stats.num_device_alloc;
  p_.traces.Mapped(TraceAction::kSegmentMap, {HandleRef{&region, 0}},
                   TraceCause::kNone);
  memory_[region.base] = std::move(memory);
  count_.store(static_cast<int>(memory_.size()));
  return segment.first;
}

std::vector<std::unique_ptr<UnmanagedMemory>> UnmanagedSegments::TakeEmpty() {
  std::vector<std::unique_ptr<UnmanagedMemory>> empty;
  if (memory_.empty()) return empty;
  for (const auto& [key, pool] : p_.heap.pools()) {
    p_.heap.DropSegments(*pool, [&](Segment& segment) {
      if (!segment.unmanaged) return false;
      if (segment.oversize) p_.stats.oversize_segments.Decrease(1);
      p_.pages.NoteUnmanagedGone(segment.bytes);
      auto memory = memory_.find(segment.base);
      empty.push_back(std::move(memory->second));
      memory_.erase(memory);
      return true;
    });
  }
  count_.store(static_cast<int>(memory_.size()));
  return empty;
}

bool UnmanagedSegments::CollectsOld() const {
  return own_source_ != nullptr && Settings::Get().collection_threshold() > 0 &&
         p_.limit.fraction() < 1.0;
}

Bytes UnmanagedSegments::AboveThreshold() const {
  if (!CollectsOld()) return 0;
  const auto most = static_cast<Bytes>(Settings::Get().collection_threshold() *
                                       static_cast<double>(p_.limit.Now()));
  const Bytes unmanaged = p_.pages.unmanaged_segment_bytes();
  return unmanaged > most ? unmanaged - most : 0;
}

std::vector<HandleRef> UnmanagedSegments::Old(Bytes wanted) const {
  std::vector<Block*> old;
  for (const auto& [key, pool] : p_.heap.pools()) {
    if (key.kind != PoolKind::kLarge || key.owner.is_private()) continue;
    pool->free_blocks().ForEach([&](const FreeKey& free) {
      if (free.size == free.block->segment->bytes) old.push_back(free.block);
      return true;
    });
  }
  // As native: those of at least average age go, until enough came free.
  std::vector<HandleRef> leaving;
  Bytes released = 0;
  while (!old.empty() && released < wanted) {
    std::uint64_t ages = 0;
    for (const Block* block : old) ages += searches_ - block->freed_at;
    const std::uint64_t average = ages / old.size();
    std::erase_if(old, [&](const Block* block) {
      if (searches_ - block->freed_at < average) return false;
      released += block->size;
      leaving.push_back({block->segment->region, 0});
      return true;
    });
  }
  return leaving;
}

Block* UnmanagedSegments::BestFit(const Pool& pool, Bytes size) {
  Block* block = pool.free_blocks().Find(size);
  if (block == nullptr || !block->segment->unmanaged) return block;
  const Bytes oversize = Settings::Get().max_split_size();
  const bool fits =
      size < oversize
          ? block->size < oversize
          : block->size < size + Settings::Get().max_non_split_rounding();
  return fits ? block : nullptr;
}

bool UnmanagedSegments::Contains(Address address) const {
  auto above = memory_.upper_bound(address);
  return above != memory_.begin() &&
         std::prev(above)->second->region().Contains(address);
}

bool UnmanagedSegments::MayBeInactive() const {
  return !memory_.empty() || p_.stats.inactive_split.stats[0].current != 0;
}

void UnmanagedSegments::CountInactive() {
  for (const PoolKind kind : {PoolKind::kSmall, PoolKind::kLarge}) {
    std::int64_t count = 0;
    std::int64_t bytes = 0;
    for (const auto& [key, pool] : p_.heap.pools()) {
      if (key.kind != kind) continue;
      pool->free_blocks().ForEach([&](const FreeKey& free) {
        const Segment& segment = *free.block->segment;
        if (!segment.unmanaged || free.size == segment.bytes) return true;
        ++count;
        bytes += static_cast<std::int64_t>(free.size);
        return true;
      });
    }
    const auto set = [&](StatArray& array, std::int64_t now) {
      const std::int64_t before =
          array.stats[1 + static_cast<int>(kind)].current;
      array.For(kind, [&](Stat& s) {
        if (now > before) s.Increase(static_cast<Bytes>(now - before));
        if (now < before) s.Decrease(static_cast<Bytes>(before - now));
      });
    };
    set(p_.stats.inactive_split, count);
    set(p_.stats.inactive_split_bytes, bytes);
  }
}

}  // namespace stratalloc
