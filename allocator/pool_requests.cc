// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what is asked of private pools, routes to them, what a
// capture puts off.

#include <chrono>
#include <thread>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

void DeviceAllocator::CreateOrUsePool(
    PoolId id, std::shared_ptr<const MemorySource> source) {
  MutexLock lock(mutex_);
  private_pools_.Use(id, std::move(source));
}

Status DeviceAllocator::BeginAllocateToPool(
    PoolId id, std::function<bool(StreamId)> filter, StreamId current) {
  const bool captures = !filter(current);
  MutexLock lock(mutex_);
  while (fencing_ > 0) fenced_.Wait(mutex_);
  const Status status =
      private_pools_.BeginRoute(id, std::move(filter), current, captures);
  NoteRoutesLocked();
  return status;
}

Status DeviceAllocator::EndAllocateToPool(PoolId id) {
  MutexLock lock(mutex_);
  const Status status = private_pools_.EndRoute(id);
  NoteRoutesLocked();
  return status;
}

Status DeviceAllocator::ReleasePool(PoolId id) {
  MutexLock lock(mutex_);
  STRATALLOC_RETURN_IF_ERROR(private_pools_.Release(id));
  ForgetPoolsLocked();
  return {};
}

bool DeviceAllocator::KeepForGraph(StreamId stream,
                                   std::span<HandleEntry* const> operands) {
  MutexLock lock(mutex_);
  const bool kept = private_pools_.KeepForGraph(stream, operands);
  NoteRoutesLocked();
  return kept;
}

bool DeviceAllocator::KeepForPool(PoolId id,
                                  std::span<HandleEntry* const> operands) {
  MutexLock lock(mutex_);
  return private_pools_.KeepForPool(id, operands);
}

int DeviceAllocator::PoolUseCount(PoolId id) {
  MutexLock lock(mutex_);
  const PrivatePool* const pool = private_pools_.Find(id);
  return pool == nullptr ? 0 : pool->use_count;
}

Status DeviceAllocator::SetUseOnOom(PoolId id, bool use_on_oom) {
  MutexLock lock(mutex_);
  STRATALLOC_ASSIGN_OR_RETURN(PrivatePool * pool, private_pools_.Get(id));
  pool->use_on_oom = use_on_oom;
  return {};
}

Status DeviceAllocator::SetNoSplit(PoolId id) {
  MutexLock lock(mutex_);
  STRATALLOC_ASSIGN_OR_RETURN(PrivatePool * pool, private_pools_.Get(id));
  pool->no_split = true;
  return {};
}

Result<std::vector<Address>> DeviceAllocator::AllocatedIn(PoolId id) {
  MutexLock lock(mutex_);
  if (auto pool = private_pools_.Get(id); !pool) {
    return tl::unexpected(pool.error());
  }
  std::vector<Address> live;
  for (const CheckpointBlock& block : AllocatedInLocked(id)) {
    live.push_back(block.address);
  }
  return live;
}

Bytes DeviceAllocator::PrivateAllocated() {
  MutexLock lock(mutex_);
  Bytes bytes = 0;
  for (const auto& [id, pool] : private_pools_.all()) {
    for (const CheckpointBlock& block : AllocatedInLocked(id)) {
      bytes += block.bytes;
    }
  }
  return bytes;
}

PoolId DeviceAllocator::RouteLocked(StreamId stream) {
  const PoolId id = private_pools_.RouteOf(stream);
  NoteRoutesLocked();
  return id;
}

void DeviceAllocator::SettleRoutesLocked() {
  private_pools_.Settle();
  NoteRoutesLocked();
}

bool DeviceAllocator::AwaitRoutes() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      SettleRoutesLocked();
      if (!routes_.SomeDoubtful()) return MayEvictLocked();
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(PoolRoutes::kLookNs));
  }
}

bool DeviceAllocator::MayCaptureStill() {
  if (!MayCapture()) return false;
  (void)AwaitRoutes();
  return MayCapture();
}

Block* DeviceAllocator::BorrowLocked(PoolKey key, Bytes size) {
  if (key.owner.is_private()) return nullptr;
  key.lifetime = LifetimeClass::kTransient;
  for (const auto& [id, lender] : private_pools_.all()) {
    if (!lender.use_on_oom) continue;
    key.owner = id;
    const Pool* pool = heap_.FindPool(key);
    if (pool == nullptr) continue;
    if (Block* block = FindFreeLocked(*pool, size)) return block;
  }
  return nullptr;
}

bool DeviceAllocator::NoSplitLocked(const Pool& pool) const {
  // Everybody's pools split, whatever was said of the pool {0, 0}.
  if (!pool.key().owner.is_private()) return false;
  const PrivatePool* const owner = private_pools_.Find(pool.key().owner);
  return owner != nullptr && owner->no_split;
}

bool DeviceAllocator::CapturingLocked() {
  const bool capturing = private_pools_.Capturing();
  NoteRoutesLocked();  // what is over is forgotten
  return capturing;
}

bool DeviceAllocator::MayEvictLocked() {
  SettleRoutesLocked();
  // An open one's stream captures, or is about to.
  return !routes_.SomeOpen() && !CapturingLocked();
}

bool DeviceAllocator::PutOffLocked(Block* block) {
  for (const StreamId stream : block->streams) NoteCaptureLocked(stream);
  if (!CapturingLocked()) return false;
  frees_.PutOff(block);
  NoteRoutesLocked();
  return true;
}

void DeviceAllocator::NoteRoutesLocked() {
  slow_.Set(SlowReason::kPoolFilter,
            routes_.MayRoute() || frees_.some_put_off());
}

void DeviceAllocator::RedeemPutOffLocked() {
  if (!frees_.some_put_off() || CapturingLocked()) return;
  for (Block* block : frees_.Redeem()) ReleaseBlockLocked(block);
  slow_.Set(SlowReason::kPendingFrees, frees_.pending());
  NoteRoutesLocked();
}

void DeviceAllocator::ForgetPoolsLocked() {
  private_pools_.Forget([&](PoolId id) REQUIRES(mutex_) {
    if (!id.is_private()) return true;  // those pools are everybody's
    for (const auto& [key, pool] : heap_.pools()) {
      if (key.owner != id) continue;
      for (const auto& segment : pool->segments()) {
        if (segment->mapped != 0) return false;
      }
    }
    DropEmptySegmentsLocked();
    heap_.ErasePoolsOf(id);
    return true;
  });
}

Status DeviceAllocator::EmptyPool(PoolId id) {
  {
    MutexLock lock(mutex_);
    if (private_pools_.IsInUse(id) || CapturingLocked()) return {};
  }
  if (Status status = SynchronizePendingFrees(); !status) return status;
  ReleaseCached(~Bytes{0}, id);
  MutexLock lock(mutex_);
  pages_.ReleaseFree(AskStreamsLocked());
  return {};
}

}  // namespace stratalloc
