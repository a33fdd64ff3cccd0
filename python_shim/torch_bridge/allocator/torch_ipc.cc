// SPDX-License-Identifier: Apache-2.0
// TorchAllocator: raw memory, caching switched off, copies between devices and
// memory shared between processes.
#include <c10/cuda/CUDAStream.h>
#include <c10/util/env.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "python_shim/bridge_api/devices.h"
#include "python_shim/bridge_api/ipc.h"
#include "python_shim/torch_bridge/allocator/gpu_trace.h"
#include "python_shim/torch_bridge/allocator/stats_convert.h"
#include "python_shim/torch_bridge/allocator/torch_allocator.h"
#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/base/conversions.h"

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

// What torch.cuda.caching_allocator_enable() said last.
std::atomic<bool> enabled{true};

}  // namespace

std::atomic<bool> caching{true};

void NoteCaching() {
  caching.store(enabled.load() && !IsUncachedByEnvironment());
}

void* AllocateUncached(size_t size) {
  void* ptr = nullptr;
  C10_CUDA_CHECK(static_cast<cudaError_t>(core::UncachedMalloc(size, &ptr)));
  TraceAllocation(ptr);
  return ptr;
}

void DeleteUncached(void* ptr) {
  TraceDeallocation(ptr);
  C10_CUDA_CHECK(static_cast<cudaError_t>(core::UncachedFree(ptr)));
}

void* TorchAllocator::raw_alloc(size_t size) {
  if (size == 0) return nullptr;
  if (!IsCaching()) return AllocateUncached(size);
  const c10::DeviceIndex device = CurrentDevice();
  return Malloc(device, size,
                ToStreamId(c10::cuda::getCurrentCUDAStream(device)),
                MallocHint::kUnseen);
}

void* TorchAllocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  if (!IsCaching()) return AllocateUncached(size);
  const c10::DeviceIndex device = CurrentDevice();
  // Only of the current stream it is known whether it is torch's.
  const StreamId current = ToStreamId(c10::cuda::getCurrentCUDAStream(device));
  if (current != ToStreamId(stream)) NoteExternal(ToStreamId(stream));
  return Malloc(device, size, ToStreamId(stream), MallocHint::kUnseen);
}

void TorchAllocator::raw_delete(void* ptr) {
  if (ptr == nullptr) return;
  if (core::Owns(ToAddress(ptr))) return DeleteBlock(ptr);
  // Native frees whatever it is given in this mode, blocks of its cache too;
  // here a block goes back to the cache, and only the rest to the driver.
  if (!IsCaching()) return DeleteUncached(ptr);
  AllocatedBlock none;
  core::Free(ToAddress(ptr), &none);  // reports it, with the last owner
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

void TorchAllocator::enable(bool value) {
  enabled.store(value);
  NoteCaching();
}

bool TorchAllocator::isEnabled() const { return enabled.load(); }

void TorchAllocator::copy_data(void* to, const void* from,
                               std::size_t count) const {
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      core::CopyData(ToAddress(to), ToAddress(from), count)));
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
  const Bytes cached = OrThrow(core::LargestCached(device));
  // Native's rule: 0 on input means "start from what the driver has free".
  if (*largest_block == 0) {
    *largest_block = OrThrow(core::GetMemoryInfo(device)).free;
  }
  *largest_block = std::max<size_t>(*largest_block, cached);
}

void* TorchAllocator::getBaseAllocation(void* ptr, size_t* size) {
  TORCH_CHECK(core::Owns(ToAddress(ptr)), "invalid device pointer: ", ptr);
  const SegmentView base = OrThrow(core::BaseAllocation(ToAddress(ptr)));
  if (size != nullptr) *size = base.bytes;
  return ToPointer(base.address);
}

void TorchAllocator::enablePeerAccess(c10::DeviceIndex device,
                                      c10::DeviceIndex peer) {
  OrThrow(core::EnablePeerAccess(device, peer));
}

cudaError_t TorchAllocator::memcpyAsync(void* to, int to_device,
                                        const void* from, int from_device,
                                        size_t count, cudaStream_t stream,
                                        bool p2p_enabled) {
  return static_cast<cudaError_t>(
      core::CopyPeer(ToAddress(to), to_device, ToAddress(from), from_device,
                     count, ToStreamId(stream), p2p_enabled));
}

ShareableHandle TorchAllocator::shareIpcHandle(void* ptr) {
  TORCH_CHECK(core::Owns(ToAddress(ptr)), "invalid device pointer: ", ptr);
  SharedBlock shared = OrThrow(core::ShareBlock(ToAddress(ptr)));
  return ShareableHandle{static_cast<ptrdiff_t>(shared.offset),
                         std::move(shared.handle)};
}

std::shared_ptr<void> TorchAllocator::getIpcDevPtr(std::string handle) {
  return imports_.Open(CurrentDevice(), handle);
}

}  // namespace stratalloc
