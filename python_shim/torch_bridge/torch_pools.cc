// SPDX-License-Identifier: Apache-2.0
// TorchAllocator: private pools, for CUDA graphs and torch.cuda.MemPool.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "python_shim/c_api.h"
#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/conversions.h"
#include "python_shim/torch_bridge/graph_generators.h"
#include "python_shim/torch_bridge/torch_allocator.h"

namespace stratalloc {
namespace {

using c10::cuda::CUDACachingAllocator::AllocatorState;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;
using Filter = std::function<bool(cudaStream_t)>;

stratalloc_pool_id ToPoolId(const c10::MempoolId_t& pool) {
  return {pool.first, pool.second};
}

int Accepts(void* filter, uint64_t stream) {
  return (*static_cast<Filter*>(filter))(
      reinterpret_cast<cudaStream_t>(stream));
}
void DropFilter(void* filter) { delete static_cast<Filter*>(filter); }

// A MemPool's own allocator. Whatever it throws ends here: to the core there
// was no memory.
using Source = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

void* AllocateFrom(void* source, uint64_t bytes, uint64_t) {
  try {
    // A graph that captures on this thread does not mind a cudaMalloc.
    c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    return (*static_cast<Source*>(source))->raw_alloc(bytes);
  } catch (const std::exception& e) {
    TORCH_WARN("A MemPool's allocator failed: ", e.what());
    return nullptr;
  }
}
void ReleaseTo(void* source, void* ptr) {
  try {
    (*static_cast<Source*>(source))->raw_delete(ptr);
  } catch (const std::exception& e) {
    TORCH_WARN("A MemPool's allocator failed to free memory: ", e.what());
  }
}
void DropSource(void* source) { delete static_cast<Source*>(source); }

struct PoolState final : AllocatorState {
  explicit PoolState(stratalloc_checkpoint* taken) : checkpoint(taken) {}
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;
  ~PoolState() override { stratalloc_checkpoint_drop(checkpoint); }

  stratalloc_checkpoint* const checkpoint;
};

}  // namespace

void TorchAllocator::emptyCache(MempoolId pool) {
  stratalloc_error error;
  if (pool.first == 0 && pool.second == 0) {
    if (stratalloc_empty_cache(-1, &error) != 0) ThrowError(error);
    return;
  }
  for (int device = 0; device < stratalloc_device_count(); ++device) {
    if (stratalloc_pool_empty(device, ToPoolId(pool), &error) != 0) {
      ThrowError(error);
    }
  }
}

void TorchAllocator::beginAllocateToPool(c10::DeviceIndex device,
                                         MempoolId pool, Filter filter) {
  stratalloc_error error;
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device);
  const std::vector<stratalloc_access> reads = GeneratorTensors(device, pool);
  if (stratalloc_pool_begin(device, ToPoolId(pool), &Accepts,
                            new Filter(std::move(filter)), &DropFilter,
                            StreamId(current), reads.data(),
                            static_cast<int>(reads.size()), &error) != 0) {
    ThrowError(error);
  }
}

void TorchAllocator::endAllocateToPool(c10::DeviceIndex device,
                                       MempoolId pool) {
  stratalloc_error error;
  if (stratalloc_pool_end(device, ToPoolId(pool), &error) != 0) {
    ThrowError(error);
  }
}

void TorchAllocator::releasePool(c10::DeviceIndex device, MempoolId pool) {
  stratalloc_error error;
  if (stratalloc_pool_release(device, ToPoolId(pool), &error) != 0) {
    ThrowError(error);
  }
}

int TorchAllocator::getPoolUseCount(c10::DeviceIndex device, MempoolId pool) {
  return stratalloc_pool_use_count(device, ToPoolId(pool));
}

void TorchAllocator::createOrIncrefPool(
    c10::DeviceIndex device, MempoolId pool,
    std::shared_ptr<CUDAAllocator> allocator) {
  stratalloc_error error;
  const int code =
      allocator == nullptr
          ? stratalloc_pool_use(device, ToPoolId(pool), &error)
          : stratalloc_pool_use_source(
                device, ToPoolId(pool), &AllocateFrom, &ReleaseTo,
                new Source(std::move(allocator)), &DropSource, &error);
  if (code != 0) ThrowError(error);
}

void TorchAllocator::setUseOnOOM(c10::DeviceIndex device, MempoolId pool,
                                 bool use_on_oom) {
  stratalloc_error error;
  if (stratalloc_pool_set_use_on_oom(device, ToPoolId(pool), use_on_oom,
                                     &error) != 0) {
    ThrowError(error);
  }
}

void TorchAllocator::setNoSplit(c10::DeviceIndex device, MempoolId pool) {
  stratalloc_error error;
  if (stratalloc_pool_set_no_split(device, ToPoolId(pool), &error) != 0) {
    ThrowError(error);
  }
}

bool TorchAllocator::checkPoolLiveAllocations(
    c10::DeviceIndex device, MempoolId pool,
    const std::unordered_set<void*>& expected) {
  struct Count {
    const std::unordered_set<void*>& expected;
    size_t found = 0;
    bool other = false;
  } count{expected};
  stratalloc_error error;
  if (stratalloc_pool_blocks(
          device, ToPoolId(pool),
          [](void* context, void* ptr) {
            Count& c = *static_cast<Count*>(context);
            ++c.found;
            c.other = c.other || c.expected.count(ptr) == 0;
          },
          &count, &error) != 0) {
    ThrowError(error);
  }
  return !count.other && count.found == expected.size();
}

std::shared_ptr<AllocatorState> TorchAllocator::getCheckpointState(
    c10::DeviceIndex device, MempoolId pool) {
  stratalloc_checkpoint* checkpoint = nullptr;
  stratalloc_error error;
  if (stratalloc_checkpoint_take(device, ToPoolId(pool), &checkpoint, &error) !=
      0) {
    ThrowError(error);
  }
  return std::make_shared<PoolState>(checkpoint);
}

CheckpointDelta TorchAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<AllocatorState> state) {
  const auto* pool = dynamic_cast<const PoolState*>(state.get());
  TORCH_CHECK(pool != nullptr, "Expected PrivatePoolState");
  struct Changes {
    CheckpointDelta delta;
    c10::Device device;
    c10::DeleterFnPtr deleter;
  } changes{{}, {c10::DeviceType::CUDA, device}, raw_deleter()};
  stratalloc_error error;
  if (stratalloc_checkpoint_go_back(
          device, pool->checkpoint,
          [](void* context, void* ptr) {
            static_cast<Changes*>(context)->delta.ptrs_freed.push_back(ptr);
          },
          [](void* context, void* ptr) {
            Changes& to = *static_cast<Changes*>(context);
            to.delta.dataptrs_allocd.emplace_back(ptr, ptr, to.deleter,
                                                  to.device);
          },
          &changes, &error) != 0) {
    ThrowError(error);
  }
  return std::move(changes.delta);
}

}  // namespace stratalloc
