// SPDX-License-Identifier: Apache-2.0
#include "allocator/requests/pool_requests.h"

#include <chrono>
#include <thread>
#include <utility>

namespace stratalloc {

void PoolRequests::CreateOrUsePool(PoolId id,
                                   std::shared_ptr<const MemorySource> source) {
  MutexLock lock(p_.mutex);
  p_.private_pools.Use(id, std::move(source));
}

Status PoolRequests::BeginAllocateToPool(PoolId id,
                                         std::function<bool(StreamId)> filter,
                                         StreamId current) {
  const bool captures = !filter(current);
  MutexLock lock(p_.mutex);
  while (p_.fencing > 0) p_.fenced.Wait(p_.mutex);
  const Status status =
      p_.private_pools.BeginRoute(id, std::move(filter), current, captures);
  p_.captures.Publish();
  return status;
}

Result<bool> PoolRequests::EndAllocateToPool(PoolId id, bool error_unread) {
  MutexLock lock(p_.mutex);
  Result<bool> made = p_.private_pools.EndRoute(id, error_unread);
  p_.captures.Publish();
  return made;
}

Status PoolRequests::ReleasePool(PoolId id) {
  MutexLock lock(p_.mutex);
  STRATALLOC_RETURN_IF_ERROR(p_.private_pools.Release(id));
  released_ = id;
  p_.placement.ForgetPools();
  return {};
}

bool PoolRequests::KeepForGraph(StreamId stream,
                                std::span<HandleUse* const> operands) {
  MutexLock lock(p_.mutex);
  const bool kept = p_.private_pools.KeepForGraph(stream, operands);
  p_.captures.Publish();
  return kept;
}

bool PoolRequests::KeepForPool(PoolId id,
                               std::span<HandleUse* const> operands) {
  MutexLock lock(p_.mutex);
  return p_.private_pools.KeepForPool(id, operands);
}

int PoolRequests::PoolUseCount(PoolId id) {
  MutexLock lock(p_.mutex);
  const PrivatePool* const pool = p_.private_pools.Find(id);
  return pool == nullptr ? 0 : pool->use_count;
}

Status PoolRequests::SetUseOnOom(PoolId id, bool use_on_oom) {
  MutexLock lock(p_.mutex);
  STRATALLOC_ASSIGN_OR_RETURN(PrivatePool * pool, p_.private_pools.Get(id));
  pool->use_on_oom = use_on_oom;
  return {};
}

Status PoolRequests::SetNoSplit(PoolId id) {
  MutexLock lock(p_.mutex);
  STRATALLOC_ASSIGN_OR_RETURN(PrivatePool * pool, p_.private_pools.Get(id));
  pool->no_split = true;
  return {};
}

Result<std::vector<Address>> PoolRequests::AllocatedIn(PoolId id) {
  MutexLock lock(p_.mutex);
  if (auto pool = p_.private_pools.Get(id); !pool) {
    return tl::unexpected(pool.error());
  }
  std::vector<Address> live;
  for (const CheckpointBlock& block : p_.checkpoints.AllocatedIn(id)) {
    live.push_back(block.address);
  }
  return live;
}

Bytes PoolRequests::PrivateAllocated() {
  MutexLock lock(p_.mutex);
  Bytes bytes = 0;
  for (const auto& [id, pool] : p_.private_pools.all()) {
    for (const CheckpointBlock& block : p_.checkpoints.AllocatedIn(id)) {
      bytes += block.bytes;
    }
  }
  return bytes;
}

Result<Checkpoint> PoolRequests::TakeCheckpoint(PoolId id) {
  MutexLock lock(p_.mutex);
  return p_.checkpoints.Take(id);
}

Result<CheckpointDelta> PoolRequests::GoBackTo(const Checkpoint& checkpoint) {
  MutexLock lock(p_.mutex);
  return p_.checkpoints.GoBack(checkpoint);
}

bool PoolRequests::AwaitRoutes() {
  for (;;) {
    {
      MutexLock lock(p_.mutex);
      p_.captures.Settle();
      if (!p_.routes.SomeDoubtful()) return p_.captures.MayEvict();
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(PoolRoutes::kLookNs));
  }
}

bool PoolRequests::CapturesHere(StreamId stream) {
  if (!MayCapture()) return false;
  MutexLock lock(p_.mutex);
  p_.captures.Settle();
  return p_.captures.IsHere(stream);
}

void PoolRequests::NoteCapture(StreamId stream) {
  MutexLock lock(p_.mutex);
  p_.captures.Note(stream);
}

PoolRequests::OthersCaptures PoolRequests::LookAtCaptures() {
  Captures::Others seen;
  if (p_.routes.MayRoute()) {
    MutexLock lock(p_.mutex);
    seen.under_way = p_.captures.SomeOfOthers();
  }
  seen.times_over = p_.routes.times_over();
  return seen;
}

void PoolRequests::KeepUntilFreed(HandleUse& operand) {
  MutexLock lock(p_.mutex);
  p_.private_pools.KeepUntilFreed(operand);
}

Status PoolRequests::EmptyPool(PoolId id) {
  {
    MutexLock lock(p_.mutex);
    if (p_.private_pools.IsInUse(id) || p_.captures.UnderWay()) return {};
    const bool known = p_.private_pools.Find(id) != nullptr || id == released_;
    if (!known) return {};  // a pool of another device
  }
  if (Status status = waits_.SynchronizePendingFrees(); !status) return status;
  waits_.ReleaseCached(~Bytes{0}, id);
  MutexLock lock(p_.mutex);
  p_.pages.ReleaseFree(p_.captures.AskStreams());
  return {};
}

}  // namespace stratalloc
