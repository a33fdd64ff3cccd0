// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: private pools, routes to them, what a capture puts off.
#include "allocator/private_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/clock.h"
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
  for (const PoolRoute& route : routes_) {
    if (route.pool == id) {
      return Fail(ErrorCode::kInvalidArgument,
                  "beginAllocateToPool: already recording to mempool_id");
    }
  }
  UsePoolLocked(id);
  routes_.push_back({.pool = id,
                     .filter = std::move(filter),
                     .stream = current,
                     .thread = std::this_thread::get_id(),
                     .of_capture = captures});
  NoteRoutesLocked();
  return {};
}

Status DeviceAllocator::EndAllocateToPool(PoolId id) {
  MutexLock lock(mutex_);
  const auto route = std::find_if(
      routes_.begin(), routes_.end(),
      [&](const PoolRoute& candidate) { return candidate.pool == id; });
  if (route == routes_.end()) {
    return Fail(ErrorCode::kInvalidArgument,
                "endAllocatePool: not currently recording to mempool_id");
  }
  const bool lost = route->over && !route->operands.empty();
  if (route->over) ReopenLocked(*route);
  routes_.erase(route);
  NoteRoutesLocked();
  CapturingLocked();  // forgets the streams of a capture that is over
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
    if (!SomeOpenLocked()) CapturingLocked();  // a raw capture may be over
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
  const auto route = std::find_if(
      routes_.begin(), routes_.end(),
      [&](const PoolRoute& candidate) { return candidate.pool == id; });
  for (HandleEntry* operand : operands) {
    if (!pool.operands.insert(operand).second) continue;
    operand->pins.fetch_add(1);
    if (route != routes_.end()) route->operands.push_back(operand);
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
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    // Of one that is over by the driver's word there is nothing to accept.
    if (route->over && !ExternalStreams::Has(route->stream)) continue;
    if (!route->filter(stream)) continue;
    if (route->over) ReopenLocked(*route);
    // Of the others the pool is asked.
    if (ExternalStreams::Has(stream)) NoteCaptureLocked(stream);
    return route->pool;
  }
  return {};
}

void DeviceAllocator::ReopenLocked(PoolRoute& route) {
  route.over = false;
  route.looks = 0;
  const auto pool = private_pools_.find(route.pool);
  if (pool != private_pools_.end()) --pool->second.failed;
  NoteRoutesLocked();
}

bool DeviceAllocator::SomeOpenLocked() const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [](const PoolRoute& route) { return route.open(); });
}

void DeviceAllocator::SettleRoutesLocked() {
  bool some_ended = ForgetCapturesLocked();
  for (PoolRoute& route : routes_) {
    if (!route.open()) continue;
    const bool own = route.thread == std::this_thread::get_id();
    const bool external = ExternalStreams::Has(route.stream);
    const bool captures = external
                              ? std::find(captures_.begin(), captures_.end(),
                                          route.stream) != captures_.end()
                              : device_.IsCapturing(route.stream);
    if (captures) route.looks = 0;
    if (captures || (external && !own)) continue;
    if (const std::int64_t now = NowNs();
        route.looks == 0 || now - route.looked_at >= PoolRoute::kLookNs) {
      ++route.looks;
      route.looked_at = now;
    }
    if (!own && route.looks < PoolRoute::kLooks) continue;
    route.over = true;
    some_ended = true;
    const auto pool = private_pools_.find(route.pool);
    if (pool == private_pools_.end()) continue;
    ++pool->second.failed;
    for (HandleEntry* operand : route.operands) {
      if (pool->second.operands.erase(operand) != 0) operand->pins.fetch_sub(1);
    }
    DropOperandsLocked(pool->second);
  }
  if (some_ended) NoteRoutesLocked();
}

bool DeviceAllocator::AwaitRoutes() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      SettleRoutesLocked();
      const bool doubtful = std::any_of(
          routes_.begin(), routes_.end(),
          [](const auto& route) { return route.open() && route.looks > 0; });
      if (!doubtful) return MayEvictLocked();
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(PoolRoute::kLookNs));
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
    const auto pool = pools_.find(key);
    if (pool == pools_.end()) continue;
    if (Block* block = FindFreeLocked(*pool->second, size)) return block;
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

bool DeviceAllocator::ForgetCapturesLocked() {
  return std::erase_if(captures_, [&](StreamId stream) {
           return !device_.IsCapturing(stream);
         }) > 0;
}

bool DeviceAllocator::CapturingLocked() {
  // Torch sets a route before every capture, and others are noticed by who uses
  // their streams. Streams that have no pool have nothing here to spoil.
  if (!routed_.load()) return false;
  if (ForgetCapturesLocked()) NoteRoutesLocked();
  if (!captures_.empty()) return true;
  for (const auto& [key, pool] : pools_) {
    if (ExternalStreams::Has(key.stream)) continue;
    if (device_.IsCapturing(key.stream)) return true;
  }
  return false;
}

bool DeviceAllocator::MayEvictLocked() {
  SettleRoutesLocked();
  // An open one's stream captures, or is about to.
  return !SomeOpenLocked() && !CapturingLocked();
}

void DeviceAllocator::EndFencing() {
  MutexLock lock(mutex_);
  if (--fencing_ == 0) fenced_.NotifyAll();
}

bool DeviceAllocator::PutOffLocked(Block* block) {
  for (const StreamId stream : block->streams) NoteCaptureLocked(stream);
  if (!CapturingLocked()) return false;
  put_off_.push_back(block);
  NoteRoutesLocked();
  return true;
}

void DeviceAllocator::NoteRoutesLocked() {
  const auto any = [&](auto&& holds) {
    return std::any_of(routes_.begin(), routes_.end(), holds);
  };
  may_capture_.store(!captures_.empty() ||
                     any([](const PoolRoute& route) { return route.open(); }));
  // Of a stream that is not asked the filter tells whether it captures after
  // all.
  routed_.store(
      MayCapture() ||
      std::any_of(routes_.begin(), routes_.end(), [](const PoolRoute& route) {
        return !route.over || ExternalStreams::Has(route.stream);
      }));
  SetSlowReasonLocked(SlowReason::kPoolFilter,
                      routed_.load() || !put_off_.empty());
}

void DeviceAllocator::RedeemPutOffLocked() {
  if (put_off_.empty() || CapturingLocked()) return;
  for (Block* block : std::exchange(put_off_, {})) {
    // What a capture recorded runs when the graph is replayed, and the graph
    // keeps the memory: only uses outside of it are still to be waited for.
    const auto captured = captured_streams_.find(block);
    if (captured != captured_streams_.end()) {
      std::erase_if(block->streams, [&](StreamId stream) {
        return std::find(captured->second.begin(), captured->second.end(),
                         stream) != captured->second.end();
      });
      captured_streams_.erase(captured);
    }
    RecordFreeEventsLocked(block);
    if (block->pending_events == 0) ReleaseBlockLocked(block);
  }
  NoteRoutesLocked();
}

void DeviceAllocator::ForgetPoolsLocked() {
  std::erase_if(private_pools_, [&](const auto& entry) REQUIRES(mutex_) {
    if (entry.second.use_count > 0) return false;
    if (!entry.first.is_private()) return true;  // those pools are everybody's
    bool empty = true;
    for (const auto& [key, pool] : pools_) {
      if (key.owner != entry.first) continue;
      for (const auto& segment : pool->segments()) {
        empty = empty && segment->mapped == 0;
      }
    }
    if (!empty) return false;
    DropEmptySegmentsLocked();
    std::erase_if(pools_, [&](const auto& pool) {
      if (pool.first.owner != entry.first) return false;
      STRATALLOC_CHECK(pool.second->segments().empty(),
                       "a private pool keeps no mappings, so it can go");
      return true;
    });
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
  physical_.ReleaseFree(AskStreamsLocked());
  return {};
}

}  // namespace stratalloc
