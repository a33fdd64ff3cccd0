// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: segments whose memory comes from a pool's own allocator.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"

namespace stratalloc {

std::shared_ptr<const MemorySource> DeviceAllocator::SourceLocked(
    PoolId id) const {
  if (!id.is_private()) return nullptr;
  const auto it = private_pools_.find(id);
  return it == private_pools_.end() ? nullptr : it->second.source;
}

std::unique_ptr<PlainMemory> DeviceAllocator::FetchPlain(const PoolKey& key,
                                                         Bytes size) {
  const Bytes bytes = PlainBytes(size);
  std::shared_ptr<const MemorySource> source;
  {
    MutexLock lock(mutex_);
    source = SourceLocked(key.owner);
    if (source == nullptr) return nullptr;
    if (physical_.used_bytes() + plain_bytes_ + bytes > LimitLocked()) {
      return nullptr;
    }
  }
  const Address address = source->allocate(bytes, key.stream);
  if (address == 0) return nullptr;
  return std::make_unique<PlainMemory>(std::move(source), address, bytes,
                                       key.kind);
}

void DeviceAllocator::AddPlainLocked(Pool& pool,
                                     std::unique_ptr<PlainMemory> memory) {
  HandleRegion& region = memory->region();
  auto segment = std::make_unique<Segment>();
  segment->pool = &pool;
  segment->region = &region;
  segment->base = region.base;
  segment->bytes = region.bytes;
  segment->plain = true;
  segment->mapped = 1;
  Block* block = NewBlockLocked();
  block->segment = segment.get();
  block->address = region.base;
  block->size = region.bytes;
  block->state = BlockState::kFree;
  segment->first = block;
  blocks_.Insert(block);
  segments_[region.base] = segment.get();
  pool.File(block);
  pool.segments().push_back(std::move(segment));
  plain_bytes_ += region.bytes;
  stats_.reserved_bytes.For(region.kind, [&](Stat& s) {
    s.Increase(static_cast<std::int64_t>(region.bytes));
  });
  stats_.segment.For(region.kind, [](Stat& s) { s.Increase(1); });
  ++stats_.num_device_alloc;
  plain_[region.base] = std::move(memory);
  plain_count_.store(static_cast<int>(plain_.size()));
}

std::vector<std::unique_ptr<PlainMemory>>
DeviceAllocator::TakeEmptyPlainLocked() {
  std::vector<std::unique_ptr<PlainMemory>> empty;
  if (plain_.empty()) return empty;
  for (auto& keyed : pools_) {
    Pool& pool = *keyed.second;
    std::erase_if(pool.segments(), [&](const auto& segment) {
      mutex_.AssertHeld();
      if (!segment->plain || segment->mapped != 0) return false;
      Block* only = segment->first;  // one handle, one free block
      pool.Unfile(only);
      blocks_.Erase(only->address);
      segments_.erase(segment->base);
      DropBlockLocked(only);
      plain_bytes_ -= segment->bytes;
      auto memory = plain_.find(segment->base);
      empty.push_back(std::move(memory->second));
      plain_.erase(memory);
      return true;
    });
  }
  plain_count_.store(static_cast<int>(plain_.size()));
  return empty;
}

bool DeviceAllocator::ContainsPlain(Address address) {
  if (plain_count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  auto above = plain_.upper_bound(address);
  return above != plain_.begin() &&
         std::prev(above)->second->region().Contains(address);
}

}  // namespace stratalloc
