// SPDX-License-Identifier: Apache-2.0
// TorchAllocator: raw memory, caching switched off, copies between devices and
// memory shared between processes.
#include <c10/cuda/CUDAStream.h>
#include <c10/util/env.h>

#include <atomic>
#include <map>

#include "python_shim/c_api.h"
#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/conversions.h"
#include "python_shim/torch_bridge/gpu_trace.h"
#include "python_shim/torch_bridge/stats_convert.h"
#include "python_shim/torch_bridge/torch_allocator.h"

namespace stratalloc {

using c10::CachingDeviceAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::ShareableHandle;
using c10::cuda::CUDACachingAllocator::StreamSegmentSize;

namespace {

// Read once, as native does: what is allocated one way must be freed that way.
bool IsUncachedByEnvironment() {
  static const bool uncached =
      c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true ||
      c10::utils::check_env("PYTORCH_NO_HIP_MEMORY_CACHING") == true;
  return uncached;
}

}  // namespace

std::atomic<bool> caching{true};

void NoteCaching() {
  caching.store(stratalloc_caching_enabled() != 0 &&
                !IsUncachedByEnvironment());
}

void* AllocateUncached(size_t size) {
  void* ptr = nullptr;
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(stratalloc_uncached_malloc(size, &ptr)));
  TraceAllocation(ptr);
  return ptr;
}

void DeleteUncached(void* ptr) {
  TraceDeallocation(ptr);
  C10_CUDA_CHECK(static_cast<cudaError_t>(stratalloc_uncached_free(ptr)));
}

void* TorchAllocator::raw_alloc(size_t size) {
  if (size == 0) return nullptr;
  if (!IsCaching()) return AllocateUncached(size);
  const c10::DeviceIndex device = CurrentDevice();
  return Malloc(device, size, StreamId(c10::cuda::getCurrentCUDAStream(device)),
                STRATALLOC_HINT_UNSEEN);
}

void* TorchAllocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  if (!IsCaching()) return AllocateUncached(size);
  const c10::DeviceIndex device = CurrentDevice();
  // Only of the current stream it is known whether it is torch's.
  const uint64_t current = StreamId(c10::cuda::getCurrentCUDAStream(device));
  if (current != StreamId(stream)) NoteExternal(StreamId(stream));
  return Malloc(device, size, StreamId(stream), STRATALLOC_HINT_UNSEEN);
}

void TorchAllocator::raw_delete(void* ptr) {
  if (ptr == nullptr) return;
  if (stratalloc_owns(ptr) != 0) return DeleteBlock(ptr);
  // Native frees whatever it is given in this mode, blocks of its cache too;
  // here a block goes back to the cache, and only the rest to the driver.
  if (!IsCaching()) return DeleteUncached(ptr);
  stratalloc_free(ptr, nullptr);  // reports it, with the last owner
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

void TorchAllocator::enable(bool value) {
  stratalloc_enable_caching(value ? 1 : 0);
  NoteCaching();
}

bool TorchAllocator::isEnabled() const {
  return stratalloc_caching_enabled() != 0;
}

void TorchAllocator::copy_data(void* to, const void* from,
                               std::size_t count) const {
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(stratalloc_copy_data(to, from, count)));
}

std::vector<StreamSegmentSize> TorchAllocator::getExpandableSegmentSizes(
    c10::DeviceIndex device) {
  std::map<std::pair<void*, bool>, size_t> sizes;  // (stream, small) -> bytes
  for (const SegmentInfo& segment : CollectSegments({0, 0})) {
    if (segment.device != device || !segment.is_expandable) continue;
    if (segment.stream == nullptr) continue;  // native leaves them out too
    sizes[{segment.stream, !segment.is_large}] += segment.total_size;
  }
  std::vector<StreamSegmentSize> result;
  result.reserve(sizes.size());
  for (const auto& [key, bytes] : sizes) {
    result.emplace_back(static_cast<cudaStream_t>(key.first), key.second,
                        bytes);
  }
  return result;
}

void TorchAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest_block) {
  uint64_t largest = *largest_block;
  stratalloc_error error;
  if (stratalloc_cache_info(device, &largest, &error) != 0) ThrowError(error);
  *largest_block = largest;
}

void* TorchAllocator::getBaseAllocation(void* ptr, size_t* size) {
  TORCH_CHECK(stratalloc_owns(ptr) != 0, "invalid device pointer: ", ptr);
  void* base = nullptr;
  uint64_t bytes = 0;
  stratalloc_error error;
  if (stratalloc_base_allocation(ptr, &base, &bytes, &error) != 0) {
    ThrowError(error);
  }
  if (size != nullptr) *size = bytes;
  return base;
}

void TorchAllocator::enablePeerAccess(c10::DeviceIndex device,
                                      c10::DeviceIndex peer) {
  stratalloc_error error;
  if (stratalloc_enable_peer_access(device, peer, &error) != 0) {
    ThrowError(error);
  }
}

cudaError_t TorchAllocator::memcpyAsync(void* to, int to_device,
                                        const void* from, int from_device,
                                        size_t count, cudaStream_t stream,
                                        bool p2p_enabled) {
  return static_cast<cudaError_t>(
      stratalloc_memcpy_async(to, to_device, from, from_device, count,
                              StreamId(stream), p2p_enabled ? 1 : 0));
}

ShareableHandle TorchAllocator::shareIpcHandle(void* ptr) {
  TORCH_CHECK(stratalloc_owns(ptr) != 0, "invalid device pointer: ", ptr);
  uint64_t offset = 0;
  std::string handle;
  stratalloc_error error;
  const auto take = [](void* context, const void* bytes, uint64_t size) {
    static_cast<std::string*>(context)->assign(static_cast<const char*>(bytes),
                                               size);
  };
  if (stratalloc_ipc_share(ptr, &offset, take, &handle, &error) != 0) {
    ThrowError(error);
  }
  return ShareableHandle{static_cast<ptrdiff_t>(offset), std::move(handle)};
}

std::shared_ptr<void> TorchAllocator::getIpcDevPtr(std::string handle) {
  return imports_.Open(CurrentDevice(), handle);
}

}  // namespace stratalloc
