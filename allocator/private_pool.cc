// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: private pools, routes to them, what a capture puts off.
#include "allocator/private_pool.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"

namespace stratalloc {
namespace {

Error NoSuchPool(PoolId id) {
  return Error{ErrorCode::kNotFound, "Could not find pool of id {" +
                                         std::to_string(id.graph) + ", " +
                                         std::to_string(id.user) + "}"};
}

}  // namespace

void DeviceAllocator::UsePoolLocked(
    PoolId id, std::shared_ptr<const MemorySource> source) {
  const auto [it, is_new] = private_pools_.try_emplace(id);
  if (!is_new) {
    ++it->second.use_count;
  } else {
    it->second.source = std::move(source);
  }
}

void DeviceAllocator::CreateOrUsePool(
    PoolId id, std::shared_ptr<const MemorySource> source) {
  MutexLock lock(mutex_);
  UsePoolLocked(id, std::move(source));
}

Status DeviceAllocator::BeginAllocateToPool(
    PoolId id, std::function<bool(StreamId)> filter, StreamId current) {
  const bool captures = !filter(current);
  MutexLock lock(mutex_);
  while (fencing_ > 0) fenced_.Wait(mutex_);
  if (routes_.Of(id) != nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "beginAllocateToPool: already recording to mempool_id");
  }
  UsePoolLocked(id);
  routes_.Add({.pool = id,
               .filter = std::move(filter),
               .stream = current,
               .thread = std::this_thread::get_id(),
               .of_capture = captures});
  NoteRoutesLocked();
  return {};
}

Status DeviceAllocator::EndAllocateToPool(PoolId id) {
  MutexLock lock(mutex_);
  PoolRoute* const route = routes_.Of(id);
  if (route == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "endAllocatePool: not currently recording to mempool_id");
  }
  const bool lost = route->over && !route->operands.empty();
  if (route->over) ReopenLocked(*route);
  routes_.Remove(route);
  NoteRoutesLocked();
  if (lost) {
    return Fail(ErrorCode::kInvalidArgument,
                "endAllocateToPool: the stream of this capture did not capture "
                "for a second, so what it used has been let go; capture again");
  }
  return {};
}

Status DeviceAllocator::ReleasePool(PoolId id) {
  MutexLock lock(mutex_);
  const auto it = private_pools_.find(id);
  if (it == private_pools_.end() || it->second.use_count == 0) {
    return tl::unexpected(NoSuchPool(id));
  }
  --it->second.use_count;
  DropOperandsLocked(it->second);
  ForgetPoolsLocked();
  return {};
}

void DeviceAllocator::DropOperandsLocked(PrivatePool& pool) {
  if (pool.in_use()) return;
  for (HandleEntry* operand : std::exchange(pool.operands, {})) {
    // The graph may still run.
    operand->fence.fetch_or(std::uint64_t{1} << StreamTable::kGraphBit);
    operand->pins.fetch_sub(1);
  }
}

bool DeviceAllocator::KeepForGraph(StreamId stream,
                                   std::span<HandleEntry* const> operands) {
  MutexLock lock(mutex_);
  if (!NoteCaptureLocked(stream)) {
    SettleRoutesLocked();
    return false;
  }
  const PoolId id = RouteLocked(stream);
  const auto pool = private_pools_.find(id);
  if (pool == private_pools_.end()) return false;
  KeepLocked(id, pool->second, operands);
  return true;
}

bool DeviceAllocator::KeepForPool(PoolId id,
                                  std::span<HandleEntry* const> operands) {
  MutexLock lock(mutex_);
  const auto pool = private_pools_.find(id);
  if (pool == private_pools_.end() || pool->second.use_count == 0) return false;
  KeepLocked(id, pool->second, operands);
  return true;
}

void DeviceAllocator::KeepLocked(PoolId id, PrivatePool& pool,
                                 std::span<HandleEntry* const> operands) {
  PoolRoute* const route = routes_.Of(id);
  for (HandleEntry* operand : operands) {
    if (!pool.operands.insert(operand).second) continue;
    operand->pins.fetch_add(1);
    if (route != nullptr) route->operands.push_back(operand);
  }
}

int DeviceAllocator::PoolUseCount(PoolId id) {
  MutexLock lock(mutex_);
  const auto it = private_pools_.find(id);
  return it == private_pools_.end() ? 0 : it->second.use_count;
}

Status DeviceAllocator::SetUseOnOom(PoolId id, bool use_on_oom) {
  MutexLock lock(mutex_);
  const auto it = private_pools_.find(id);
  if (it == private_pools_.end()) return tl::unexpected(NoSuchPool(id));
  it->second.use_on_oom = use_on_oom;
  return {};
}

Status DeviceAllocator::SetNoSplit(PoolId id) {
  MutexLock lock(mutex_);
  const auto it = private_pools_.find(id);
  if (it == private_pools_.end()) return tl::unexpected(NoSuchPool(id));
  it->second.no_split = true;
  return {};
}

Result<std::vector<Address>> DeviceAllocator::AllocatedIn(PoolId id) {
  MutexLock lock(mutex_);
  if (!private_pools_.contains(id)) return tl::unexpected(NoSuchPool(id));
  std::vector<Address> live;
  for (const CheckpointBlock& block : AllocatedInLocked(id)) {
    live.push_back(block.address);
  }
  return live;
}

Bytes DeviceAllocator::PrivateAllocated() {
  MutexLock lock(mutex_);
  Bytes bytes = 0;
  for (const auto& [id, pool] : private_pools_) {
    for (const CheckpointBlock& block : AllocatedInLocked(id)) {
      bytes += block.bytes;
    }
  }
  return bytes;
}

PoolId DeviceAllocator::RouteLocked(StreamId stream) {
  PoolRoute* const route = routes_.For(stream);
  if (route == nullptr) return {};
  if (route->over) ReopenLocked(*route);
  NoteRoutesLocked();
  return route->pool;
}

void DeviceAllocator::ReopenLocked(PoolRoute& route) {
  routes_.Reopen(route);
  const auto pool = private_pools_.find(route.pool);
  if (pool != private_pools_.end()) --pool->second.failed;
}

void DeviceAllocator::SettleRoutesLocked() {
  for (const PoolRoute* route : routes_.Settle()) {
    const auto pool = private_pools_.find(route->pool);
    if (pool == private_pools_.end()) continue;
    ++pool->second.failed;
    for (HandleEntry* operand : route->operands) {
      if (pool->second.operands.erase(operand) != 0) operand->pins.fetch_sub(1);
    }
    DropOperandsLocked(pool->second);
  }
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
  for (const auto& [id, lender] : private_pools_) {
    if (!lender.use_on_oom) continue;
    key.owner = id;
    const Pool* pool = heap_.FindPool(key);
    if (pool == nullptr) continue;
    if (Block* block = FindFreeLocked(*pool, size)) return block;
  }
  return nullptr;
}

bool DeviceAllocator::NoSplitLocked(const Pool& pool) const {
  if (!pool.key().owner.is_private()) return false;
  const auto it = private_pools_.find(pool.key().owner);
  return it != private_pools_.end() && it->second.no_split;
}

bool DeviceAllocator::InUseLocked(PoolId id) const {
  if (!id.is_private()) return false;
  const auto it = private_pools_.find(id);
  return it != private_pools_.end() && it->second.in_use();
}

bool DeviceAllocator::CapturingLocked() {
  // Torch sets a route before every capture, and others are noticed by who uses
  // their streams. Streams without mallocs have nothing here to spoil.
  if (!routes_.MayRoute()) return false;
  const bool noted = routes_.SomeNotedCapture();
  NoteRoutesLocked();
  if (noted) return true;
  return std::any_of(streams_of_mallocs_.begin(), streams_of_mallocs_.end(),
                     [&](StreamId stream) {
                       return !ExternalStreams::Has(stream) &&
                              device_.IsCapturing(stream);
                     });
}

bool DeviceAllocator::MayEvictLocked() {
  SettleRoutesLocked();
  // An open one's stream captures, or is about to.
  return !routes_.SomeOpen() && !CapturingLocked();
}

void DeviceAllocator::EndFencing() {
  MutexLock lock(mutex_);
  if (--fencing_ == 0) fenced_.NotifyAll();
}

bool DeviceAllocator::PutOffLocked(Block* block) {
  for (const StreamId stream : block->streams) NoteCaptureLocked(stream);
  if (!CapturingLocked()) return false;
  frees_.PutOff(block);
  NoteRoutesLocked();
  return true;
}

void DeviceAllocator::NoteRoutesLocked() {
  SetSlowReasonLocked(SlowReason::kPoolFilter,
                      routes_.MayRoute() || frees_.some_put_off());
}

void DeviceAllocator::RedeemPutOffLocked() {
  if (!frees_.some_put_off() || CapturingLocked()) return;
  for (Block* block : frees_.Redeem()) ReleaseBlockLocked(block);
  SetSlowReasonLocked(SlowReason::kPendingFrees, frees_.pending());
  NoteRoutesLocked();
}

void DeviceAllocator::ForgetPoolsLocked() {
  std::erase_if(private_pools_, [&](const auto& entry) REQUIRES(mutex_) {
    if (entry.second.use_count > 0) return false;
    if (!entry.first.is_private()) return true;  // those pools are everybody's
    bool empty = true;
    for (const auto& [key, pool] : heap_.pools()) {
      if (key.owner != entry.first) continue;
      for (const auto& segment : pool->segments()) {
        empty = empty && segment->mapped == 0;
      }
    }
    if (!empty) return false;
    DropEmptySegmentsLocked();
    heap_.ErasePoolsOf(entry.first);
    return true;
  });
}

Status DeviceAllocator::EmptyPool(PoolId id) {
  {
    MutexLock lock(mutex_);
    if (InUseLocked(id) || CapturingLocked()) return {};
  }
  if (Status status = SynchronizePendingFrees(); !status) return status;
  ReleaseCached(~Bytes{0}, id);
  MutexLock lock(mutex_);
  pages_.ReleaseFree(AskStreamsLocked());
  return {};
}

}  // namespace stratalloc
