// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: segments whose memory comes and goes in one piece. Here, and
// only here, native's rules against memory stranded beside a small block
// matter: nothing of such a segment can go back while a block in it lives.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/settings.h"

namespace stratalloc {

std::shared_ptr<const MemorySource> DeviceAllocator::SourceLocked(
    const PoolKey& key) const {
  if (key.owner.is_private()) {
    const PrivatePool* const owner = private_pools_.Find(key.owner);
    if (owner != nullptr && owner->source != nullptr) return owner->source;
  }
  if (own_source_ != nullptr) return own_source_;
  const bool leaves = options_.tiering && IsEvictable(key.lifetime);
  return !leaves && Settings::Get().plain_segments() ? cuda_malloc_ : nullptr;
}

Block* DeviceAllocator::FindFreeLocked(const Pool& pool, Bytes size) {
  Block* block = pool.free_blocks().Find(size);
  if (block == nullptr || !block->segment->plain) return block;
  const Bytes oversize = Settings::Get().max_split_size();
  const bool fits =
      size < oversize
          ? block->size < oversize
          : block->size < size + Settings::Get().max_non_split_rounding();
  return fits ? block : nullptr;
}

Result<std::unique_ptr<PlainMemory>> DeviceAllocator::FetchPlain(
    const PoolKey& key, Bytes size) {
  const Bytes bytes = Settings::Get().SegmentBytes(size);
  std::shared_ptr<const MemorySource> source;
  {
    MutexLock lock(mutex_);
    source = SourceLocked(key);
    if (source == nullptr) return nullptr;
    if (pages_.used_bytes() + bytes > limit_.Now()) return nullptr;
    pages_.BeginFetch(bytes);
  }
  Result<Address> address = source->allocate(bytes, key.stream);
  if (!address && address.error().code == ErrorCode::kOutOfMemory) {
    const Bytes given = [&] {  // what is free here the driver has not
      MutexLock lock(mutex_);
      return CapturingLocked() ? 0 : pages_.ReleaseFree(AskStreamsLocked());
    }();
    if (given > 0) address = source->allocate(bytes, key.stream);
  }
  if (address) {
    return std::make_unique<PlainMemory>(std::move(source), *address, bytes,
                                         key.kind);
  }
  MutexLock lock(mutex_);
  pages_.EndFetch(bytes, /*came=*/false);
  if (address.error().code == ErrorCode::kOutOfMemory) return nullptr;
  return tl::unexpected(address.error());
}

Block* DeviceAllocator::AddPlainLocked(Pool& pool,
                                       std::unique_ptr<PlainMemory> memory) {
  HandleRegion& region = memory->region();
  Segment& segment = heap_.AddPlainSegment(pool, region);
  pages_.EndFetch(region.bytes, /*came=*/true);
  stats_.reserved_bytes.For(region.kind, [&](Stat& s) {
    s.Increase(static_cast<std::int64_t>(region.bytes));
  });
  if (region.bytes >= Settings::Get().max_split_size()) {
    stats_.oversize_segments.Increase(1);
    segment.oversize = true;
  }
  ++stats_.num_device_alloc;
  traces_.Mapped(TraceAction::kSegmentMap, {HandleRef{&region, 0}}, nullptr);
  plain_[region.base] = std::move(memory);
  plain_count_.store(static_cast<int>(plain_.size()));
  return segment.first;
}

std::vector<std::unique_ptr<PlainMemory>>
DeviceAllocator::TakeEmptyPlainLocked() {
  std::vector<std::unique_ptr<PlainMemory>> empty;
  if (plain_.empty()) return empty;
  for (const auto& [key, pool] : heap_.pools()) {
    heap_.DropSegments(*pool, [&](Segment& segment) {
      mutex_.AssertHeld();
      if (!segment.plain) return false;
      if (segment.oversize) stats_.oversize_segments.Decrease(1);
      pages_.NotePlainGone(segment.bytes);
      auto memory = plain_.find(segment.base);
      empty.push_back(std::move(memory->second));
      plain_.erase(memory);
      return true;
    });
  }
  plain_count_.store(static_cast<int>(plain_.size()));
  return empty;
}

// Ages are counted in searches, so that then every search must be seen.
bool DeviceAllocator::CollectsOldLocked() {
  return own_source_ != nullptr && Settings::Get().collection_threshold() > 0 &&
         limit_.fraction() < 1.0;
}

std::vector<std::unique_ptr<PlainMemory>> DeviceAllocator::CollectOldLocked() {
  const double threshold = Settings::Get().collection_threshold();
  const bool on = CollectsOldLocked();
  slow_.Set(SlowReason::kCollection, on);
  if (!on || CapturingLocked()) return {};
  const auto most =
      static_cast<Bytes>(threshold * static_cast<double>(limit_.Now()));
  const Bytes plain = pages_.plain_segment_bytes();
  if (plain <= most) return {};
  const Bytes wanted = plain - most;
  EmptyBinsLocked();
  std::vector<Block*> old;
  for (auto& [key, pool] : heap_.pools()) {
    if (key.kind != PoolKind::kLarge || key.owner.is_private()) continue;
    pool->free_blocks().ForEach([&](const FreeKey& free) {
      if (free.size == free.block->segment->bytes) old.push_back(free.block);
      return true;
    });
  }
  // As native: those of at least average age go, until enough came free.
  Bytes released = 0;
  while (!old.empty() && released < wanted) {
    std::uint64_t ages = 0;
    for (const Block* block : old) ages += searches_ - block->freed_at;
    const std::uint64_t average = ages / old.size();
    std::erase_if(old, [&](Block* block) {
      mutex_.AssertHeld();
      if (searches_ - block->freed_at < average) return false;
      released += block->size;
      // cudaFree waits for whoever may still use it.
      GiveUpLocked({HandleRef{block->segment->region, 0}}, /*fenced=*/true);
      return true;
    });
  }
  return TakeEmptyPlainLocked();
}

void DeviceAllocator::CountInactiveLocked() {
  if (plain_.empty() && stats_.inactive_split.stats[0].current == 0) return;
  EmptyBinsLocked();
  for (const PoolKind kind : {PoolKind::kSmall, PoolKind::kLarge}) {
    std::int64_t count = 0;
    std::int64_t bytes = 0;
    for (const auto& [key, pool] : heap_.pools()) {
      if (key.kind != kind) continue;
      pool->free_blocks().ForEach([&](const FreeKey& free) {
        const Segment& segment = *free.block->segment;
        if (!segment.plain || free.size == segment.bytes) return true;
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
    set(stats_.inactive_split, count);
    set(stats_.inactive_split_bytes, bytes);
  }
}

bool DeviceAllocator::ContainsPlain(Address address) {
  if (plain_count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  auto above = plain_.upper_bound(address);
  return above != plain_.begin() &&
         std::prev(above)->second->region().Contains(address);
}

}  // namespace stratalloc
