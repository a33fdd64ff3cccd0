// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/pools.h"

#include <string>
#include <utility>

#include "python_shim/core/core.h"

namespace stratalloc::core {
namespace {

// The device of a pool that must be there.
Result<DeviceAllocator*> DeviceOfPool(int device, PoolId pool) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  if (allocator != nullptr) return allocator;
  return Fail(ErrorCode::kInvalidArgument,
              "no private pool (" + std::to_string(pool.graph) + ", " +
                  std::to_string(pool.user) + ") on device " +
                  std::to_string(device) + ", where nothing was allocated yet");
}

}  // namespace

Status UsePool(int device, PoolId pool,
               std::shared_ptr<const MemorySource> source) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Device(device));
  allocator->CreateOrUsePool(pool, std::move(source));
  return {};
}

Status BeginAllocateToPool(int device, PoolId pool,
                           std::function<bool(StreamId)> filter,
                           StreamId current, std::span<const Access> reads) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Device(device));
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) {
    return allocator->BeginAllocateToPool(pool, std::move(filter), current);
  }
  return engine->BeginAllocateToPool(*allocator, pool, std::move(filter),
                                     current, reads);
}

Result<bool> EndAllocateToPool(int device, PoolId pool, bool error_unread) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              DeviceOfPool(device, pool));
  return allocator->EndAllocateToPool(pool, error_unread);
}

Status ReleasePool(int device, PoolId pool) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              DeviceOfPool(device, pool));
  return allocator->ReleasePool(pool);
}

int PoolUseCount(int device, PoolId pool) {
  DeviceAllocator* const allocator =
      Core::Get().Opened(device).value_or(nullptr);
  return allocator != nullptr ? allocator->PoolUseCount(pool) : 0;
}

Status SetPoolUseOnOom(int device, PoolId pool, bool on) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              DeviceOfPool(device, pool));
  return allocator->SetUseOnOom(pool, on);
}

Status SetPoolNoSplit(int device, PoolId pool) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              DeviceOfPool(device, pool));
  return allocator->SetNoSplit(pool);
}

Status EmptyPool(int device, PoolId pool) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  if (allocator == nullptr) return {};
  return allocator->EmptyPool(pool);
}

Result<std::vector<Address>> AllocatedIn(int device, PoolId pool) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              DeviceOfPool(device, pool));
  return allocator->AllocatedIn(pool);
}

Result<Checkpoint> TakeCheckpoint(int device, PoolId pool) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              DeviceOfPool(device, pool));
  return allocator->TakeCheckpoint(pool);
}

Result<CheckpointDelta> GoBackTo(int device, const Checkpoint& checkpoint) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Device(device));
  return allocator->GoBackTo(checkpoint);
}

}  // namespace stratalloc::core
