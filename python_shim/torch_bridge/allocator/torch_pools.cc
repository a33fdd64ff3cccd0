// SPDX-License-Identifier: Apache-2.0
// TorchAllocator: private pools, for CUDA graphs and torch.cuda.MemPool.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "python_shim/bridge_api/pools.h"
#include "python_shim/bridge_api/setup.h"
#include "python_shim/torch_bridge/allocator/graph_generators.h"
#include "python_shim/torch_bridge/allocator/torch_allocator.h"
#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/base/conversions.h"
#include "python_shim/torch_bridge/base/torch_minor.h"

namespace stratalloc {
namespace {

using c10::cuda::CUDACachingAllocator::AllocatorState;
using Filter = std::function<bool(cudaStream_t)>;

// A MemPool's own allocator. Whatever it throws ends here: to the core there
// was no memory.
using Source = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

Result<Address> AllocateFrom(const Source& source, Bytes bytes) {
  try {
    // A graph that captures on this thread does not mind a cudaMalloc.
    c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    if (void* const memory = source->raw_alloc(bytes)) return ToAddress(memory);
  } catch (const std::exception& e) {
    TORCH_WARN("A MemPool's allocator failed: ", e.what());
  }
  return Fail(ErrorCode::kOutOfMemory, "the pool's allocator has none");
}
void ReleaseTo(const Source& source, Address address) {
  try {
    source->raw_delete(ToPointer(address));
  } catch (const std::exception& e) {
    TORCH_WARN("A MemPool's allocator failed to free memory: ", e.what());
  }
}

struct PoolState final : AllocatorState {
  explicit PoolState(Checkpoint taken) : checkpoint(std::move(taken)) {}
  const Checkpoint checkpoint;
};

}  // namespace

void TorchAllocator::emptyCache(MempoolId pool) {
  if (!ToPoolId(pool).is_private()) {
    return OrThrow(core::EmptyCache(kCountsWaitsInRoutes));
  }
  for (int device = 0; device < core::DeviceCount(); ++device) {
    OrThrow(core::EmptyPool(device, ToPoolId(pool)));
  }
}

void TorchAllocator::beginAllocateToPool(c10::DeviceIndex device,
                                         MempoolId pool, Filter filter) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device);
  OrThrow(core::BeginAllocateToPool(
      device, ToPoolId(pool),
      [filter = std::move(filter)](StreamId stream) {
        return filter(ToStream(stream));
      },
      ToStreamId(current), GeneratorTensors(device, pool)));
}

void TorchAllocator::endAllocateToPool(c10::DeviceIndex device,
                                       MempoolId pool) {
  const bool made = OrThrow(core::EndAllocateToPool(
      device, ToPoolId(pool), /*error_unread=*/kKeepsUseOfFailedCapture));
  if (!made) OrThrow(core::ReleasePool(device, ToPoolId(pool)));
}

void TorchAllocator::releasePool(c10::DeviceIndex device, MempoolId pool) {
  OrThrow(core::ReleasePool(device, ToPoolId(pool)));
}

int TorchAllocator::getPoolUseCount(c10::DeviceIndex device, MempoolId pool) {
  return core::PoolUseCount(device, ToPoolId(pool));
}

void TorchAllocator::createOrIncrefPool(
    c10::DeviceIndex device, MempoolId pool,
    std::shared_ptr<CUDAAllocator> allocator) {
  std::shared_ptr<const MemorySource> source;
  if (allocator != nullptr) {
    source = std::make_shared<const MemorySource>(MemorySource{
        [allocator](Bytes bytes, StreamId) {
          return AllocateFrom(allocator, bytes);
        },
        [allocator](Address address) { ReleaseTo(allocator, address); }});
  }
  OrThrow(core::UsePool(device, ToPoolId(pool), std::move(source)));
}

void TorchAllocator::setUseOnOOM(c10::DeviceIndex device, MempoolId pool,
                                 bool use_on_oom) {
  OrThrow(core::SetPoolUseOnOom(device, ToPoolId(pool), use_on_oom));
}

void TorchAllocator::setNoSplit(c10::DeviceIndex device, MempoolId pool) {
  OrThrow(core::SetPoolNoSplit(device, ToPoolId(pool)));
}

bool TorchAllocator::checkPoolLiveAllocations(
    c10::DeviceIndex device, MempoolId pool,
    const std::unordered_set<void*>& expected) {
  const std::vector<Address> blocks =
      OrThrow(core::AllocatedIn(device, ToPoolId(pool)));
  return blocks.size() == expected.size() &&
         std::all_of(blocks.begin(), blocks.end(), [&](Address address) {
           return expected.count(ToPointer(address)) != 0;
         });
}

std::shared_ptr<AllocatorState> TorchAllocator::getCheckpointState(
    c10::DeviceIndex device, MempoolId pool) {
  return std::make_shared<PoolState>(
      OrThrow(core::TakeCheckpoint(device, ToPoolId(pool))));
}

c10::cuda::CUDACachingAllocator::CheckpointDelta
TorchAllocator::setCheckpointPoolState(c10::DeviceIndex device,
                                       std::shared_ptr<AllocatorState> state) {
  const auto* pool = dynamic_cast<const PoolState*>(state.get());
  TORCH_CHECK(pool != nullptr, "Expected PrivatePoolState");
  const CheckpointDelta changes =
      OrThrow(core::GoBackTo(device, pool->checkpoint));
  c10::cuda::CUDACachingAllocator::CheckpointDelta delta;
  for (const CheckpointBlock& block : changes.freed) {
    delta.ptrs_freed.push_back(ToPointer(block.address));
  }
  for (const CheckpointBlock& block : changes.allocated) {
    void* const ptr = ToPointer(block.address);
    delta.dataptrs_allocd.emplace_back(ptr, ptr, raw_deleter(),
                                       CudaDevice(device));
  }
  return delta;
}

}  // namespace stratalloc
