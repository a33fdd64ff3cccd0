// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_CONVERSIONS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_CONVERSIONS_H_

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/values/pool_id.h"
#include "python_shim/bridge_api/blocks.h"

namespace stratalloc {

// What every file of TorchAllocator needs: torch's words in the core's.

inline Address ToAddress(const void* ptr) {
  return reinterpret_cast<Address>(ptr);
}
inline void* ToPointer(Address address) {
  return reinterpret_cast<void*>(address);
}

inline StreamId ToStreamId(cudaStream_t stream) {
  return StreamId{reinterpret_cast<uint64_t>(stream)};
}
inline cudaStream_t ToStream(StreamId stream) {
  return reinterpret_cast<cudaStream_t>(Raw(stream));
}

inline PoolId ToPoolId(const c10::MempoolId_t& pool) {
  return {pool.first, pool.second};
}

// True once a stream was called external: then the core also learns which are
// torch's, since some were given as bare values.
inline std::atomic<bool> some_are_external{false};

inline void NoteExternal(StreamId stream) {
  core::NoteExternalStream(stream);
  some_are_external.store(true, std::memory_order_relaxed);
}

// The core learns which streams are not torch's. The id of a stream out of
// torch's pools is odd, that of an external one its address
// (c10/cuda/CUDAStream.cpp).
inline StreamId ToStreamId(const c10::cuda::CUDAStream& stream) {
  // 0 is the default stream in all of c10 (c10/core/Stream.h), and CUDA's is
  // the null stream: nearly always, and a call of 5 ns less.
  if (C10_LIKELY(stream.id() == 0)) return kDefaultStream;
  const StreamId id = ToStreamId(stream.stream());
  if (C10_UNLIKELY((stream.id() & 1) == 0)) {
    NoteExternal(id);
  } else if (C10_UNLIKELY(some_are_external.load(std::memory_order_relaxed))) {
    core::NoteLastingStream(id);
  }
  return id;
}

inline c10::Device CudaDevice(int device) {
  return c10::Device(c10::DeviceType::CUDA,
                     static_cast<c10::DeviceIndex>(device));
}

// True once torch initialised with one device: then it is the current one,
// and the runtime need not be asked on every allocation.
inline std::atomic<bool> single_device{false};

inline c10::DeviceIndex CurrentDevice() {
  c10::DeviceIndex device = 0;
  if (single_device.load(std::memory_order_relaxed)) return device;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

// The deleter of every DataPtr over a block of ours (torch_allocator.cc).
// Never throws.
void DeleteBlock(void* ptr);

// Memory past the cache, straight from cudaMalloc, and its deleter: what
// native hands out while caching is disabled (torch_ipc.cc). The current
// device's; throws CUDA's own error. In no statistic, as in native.
void* AllocateUncached(size_t size);
void DeleteUncached(void* ptr);

// False while allocations go past the cache: enable(false), or
// PYTORCH_NO_CUDA_MEMORY_CACHING=1 in the environment.
extern std::atomic<bool> caching;
inline bool IsCaching() { return caching.load(std::memory_order_relaxed); }
// Reads both again; init and enable() do.
void NoteCaching();

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_CONVERSIONS_H_
