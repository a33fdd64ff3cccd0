// SPDX-License-Identifier: Apache-2.0
#include "allocator/streams/private_pools.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

namespace stratalloc {
namespace {

Error NoSuchPool(PoolId id) {
  return Error{ErrorCode::kNotFound, "Could not find pool of id {" +
                                         std::to_string(id.graph) + ", " +
                                         std::to_string(id.user) + "}"};
}

// A graph may still run.
void NoteGraphStreams(HandleUse& operand) {
  operand.NoteUnseen(std::uint64_t{1} << StreamTable::kGraphBit);
  operand.pins.fetch_sub(1);
}

}  // namespace

PrivatePool* PrivatePools::Find(PoolId id) {
  const auto it = pools_.find(id);
  return it == pools_.end() ? nullptr : &it->second;
}

const PrivatePool* PrivatePools::Find(PoolId id) const {
  const auto it = pools_.find(id);
  return it == pools_.end() ? nullptr : &it->second;
}

Result<PrivatePool*> PrivatePools::Get(PoolId id) {
  if (PrivatePool* pool = Find(id)) return pool;
  return tl::unexpected(NoSuchPool(id));
}

void PrivatePools::Use(PoolId id, std::shared_ptr<const MemorySource> source) {
  const auto [it, is_new] = pools_.try_emplace(id);
  if (!is_new) {
    ++it->second.use_count;
  } else {
    it->second.source = std::move(source);
  }
}

Status PrivatePools::Release(PoolId id) {
  PrivatePool* const pool = Find(id);
  if (pool == nullptr || pool->use_count == 0) {
    return tl::unexpected(NoSuchPool(id));
  }
  --pool->use_count;
  DropOperands(*pool);
  return {};
}

bool PrivatePools::IsInUse(PoolId id) const {
  if (!id.is_private()) return false;
  const PrivatePool* const pool = Find(id);
  return pool != nullptr && pool->in_use();
}

void PrivatePools::Forget(const std::function<bool(PoolId)>& empty) {
  std::erase_if(pools_, [&](const auto& entry) {
    return entry.second.use_count == 0 && empty(entry.first);
  });
}

Status PrivatePools::BeginRoute(PoolId id, std::function<bool(StreamId)> filter,
                                StreamId current, bool captures) {
  if (routes_.Of(id) != nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "beginAllocateToPool: already recording to mempool_id");
  }
  Use(id);
  routes_.Add({.pool = id,
               .filter = std::move(filter),
               .stream = current,
               .thread = std::this_thread::get_id(),
               .of_capture = captures,
               .after_error = device_.LastErrorIsOfACapture()});
  return {};
}

Result<bool> PrivatePools::EndRoute(PoolId id, bool error_unread) {
  PoolRoute* const route = routes_.Of(id);
  if (route == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "endAllocatePool: not currently recording to mempool_id");
  }
  const bool lost = route->over && !route->operands.empty();
  if (route->over) Reopen(*route);
  // Another thread's error, or one from before, is of another capture.
  const bool failed = error_unread && route->of_capture &&
                      route->thread == std::this_thread::get_id() &&
                      !route->after_error && device_.LastErrorIsOfACapture();
  if (failed) DropOperandsOf(*route);
  routes_.Remove(route);
  if (failed || !lost) return !failed;
  return Fail(ErrorCode::kInvalidArgument,
              "endAllocateToPool: the stream of this capture did not capture "
              "for a second, so what it used has been let go; capture again");
}

PoolId PrivatePools::RouteOf(StreamId stream) {
  PoolRoute* const route = routes_.For(stream);
  if (route == nullptr) return {};
  if (route->over) Reopen(*route);
  return route->pool;
}

void PrivatePools::Reopen(PoolRoute& route) {
  routes_.Reopen(route);
  if (PrivatePool* pool = Find(route.pool)) --pool->failed;
}

void PrivatePools::Settle() {
  for (const PoolRoute* route : routes_.Settle()) {
    PrivatePool* const pool = Find(route->pool);
    if (pool == nullptr) continue;
    ++pool->failed;
    DropOperandsOf(*route);
    DropOperands(*pool);
  }
}

void PrivatePools::DropOperandsOf(const PoolRoute& failed) {
  PrivatePool* const pool = Find(failed.pool);
  if (pool == nullptr) return;
  for (HandleUse* operand : failed.operands) {
    if (pool->operands.erase(operand) != 0) operand->pins.fetch_sub(1);
  }
}

bool PrivatePools::Capturing() {
  // Torch sets a route before every capture, and others are noticed by who uses
  // their streams. Streams without mallocs have nothing here to spoil.
  if (!routes_.MayRoute()) return false;
  if (routes_.SomeNotedCapture()) return true;
  return std::any_of(streams_.begin(), streams_.end(), [&](StreamId stream) {
    return !ExternalStreams::Has(stream) && device_.IsCapturing(stream);
  });
}

bool PrivatePools::KeepForGraph(StreamId stream,
                                std::span<HandleUse* const> operands) {
  if (!routes_.NoteCapture(stream)) {
    Settle();
    return false;
  }
  const PoolId id = RouteOf(stream);
  PrivatePool* const pool = Find(id);
  if (pool == nullptr) return false;
  Keep(id, *pool, operands);
  return true;
}

bool PrivatePools::KeepForPool(PoolId id,
                               std::span<HandleUse* const> operands) {
  PrivatePool* const pool = Find(id);
  if (pool == nullptr || pool->use_count == 0) return false;
  Keep(id, *pool, operands);
  return true;
}

void PrivatePools::Keep(PoolId id, PrivatePool& pool,
                        std::span<HandleUse* const> operands) {
  PoolRoute* const route = routes_.Of(id);
  for (HandleUse* operand : operands) {
    if (!pool.operands.insert(operand).second) continue;
    operand->pins.fetch_add(1);
    if (route != nullptr) route->operands.push_back(operand);
  }
}

void PrivatePools::DropOperands(PrivatePool& pool) {
  if (pool.in_use()) return;
  for (HandleUse* operand : std::exchange(pool.operands, {})) {
    NoteGraphStreams(*operand);
  }
}

void PrivatePools::KeepUntilFreed(HandleUse& operand) {
  if (raw_operands_.insert(&operand).second) operand.pins.fetch_add(1);
}

void PrivatePools::DropRawOperand(HandleUse& freed) {
  if (raw_operands_.erase(&freed) != 0) NoteGraphStreams(freed);
}

std::set<const HandleUse*> PrivatePools::Operands() const {
  std::set<const HandleUse*> operands(raw_operands_.begin(),
                                      raw_operands_.end());
  for (const auto& [id, pool] : pools_) {
    operands.insert(pool.operands.begin(), pool.operands.end());
  }
  return operands;
}

}  // namespace stratalloc
