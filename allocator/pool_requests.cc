// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what is asked of private pools, routes to them,
// captures.

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
  captures_.Publish();
  return status;
}

Status DeviceAllocator::EndAllocateToPool(PoolId id) {
  MutexLock lock(mutex_);
  const Status status = private_pools_.EndRoute(id);
  captures_.Publish();
  return status;
}

Status DeviceAllocator::ReleasePool(PoolId id) {
  MutexLock lock(mutex_);
  STRATALLOC_RETURN_IF_ERROR(private_pools_.Release(id));
  placement_.ForgetPools();
  return {};
}

bool DeviceAllocator::KeepForGraph(StreamId stream,
                                   std::span<HandleEntry* const> operands) {
  MutexLock lock(mutex_);
  const bool kept = private_pools_.KeepForGraph(stream, operands);
  captures_.Publish();
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
  for (const CheckpointBlock& block : checkpoints_.AllocatedIn(id)) {
    live.push_back(block.address);
  }
  return live;
}

Bytes DeviceAllocator::PrivateAllocated() {
  MutexLock lock(mutex_);
  Bytes bytes = 0;
  for (const auto& [id, pool] : private_pools_.all()) {
    for (const CheckpointBlock& block : checkpoints_.AllocatedIn(id)) {
      bytes += block.bytes;
    }
  }
  return bytes;
}

Result<Checkpoint> DeviceAllocator::TakeCheckpoint(PoolId id) {
  MutexLock lock(mutex_);
  return checkpoints_.Take(id);
}

Result<CheckpointDelta> DeviceAllocator::GoBackTo(
    const Checkpoint& checkpoint) {
  MutexLock lock(mutex_);
  return checkpoints_.GoBack(checkpoint);
}

bool DeviceAllocator::AwaitRoutes() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      captures_.Settle();
      if (!routes_.SomeDoubtful()) return captures_.MayEvict();
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(PoolRoutes::kLookNs));
  }
}

bool DeviceAllocator::MayCaptureStill() {
  if (!MayCapture()) return false;
  (void)AwaitRoutes();
  return MayCapture();
}

void DeviceAllocator::NoteCapture(StreamId stream) {
  MutexLock lock(mutex_);
  captures_.Note(stream);
}

Captures::Others DeviceAllocator::LookAtCaptures() {
  Captures::Others seen;
  if (MayCapture()) {
    MutexLock lock(mutex_);
    seen.under_way = captures_.SomeOfOthers();
  }
  seen.times_over = routes_.times_over();
  return seen;
}

void DeviceAllocator::KeepUntilFreed(HandleEntry& operand) {
  MutexLock lock(mutex_);
  private_pools_.KeepUntilFreed(operand);
}

Status DeviceAllocator::EmptyPool(PoolId id) {
  {
    MutexLock lock(mutex_);
    if (private_pools_.IsInUse(id) || captures_.UnderWay()) return {};
  }
  if (Status status = SynchronizePendingFrees(); !status) return status;
  ReleaseCached(~Bytes{0}, id);
  MutexLock lock(mutex_);
  pages_.ReleaseFree(captures_.AskStreams());
  return {};
}

}  // namespace stratalloc
