// SPDX-License-Identifier: Apache-2.0
//
// The runtime's stream-ordered memory and its pools.

#include <cuda_runtime_api.h>

#include "tests/cudasim/pools.h"
#include "tests/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::kQuestion;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Pool;
using cudasim::Simulator;

namespace {

bool IsDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

cudaMemPool_t Handle(const Pool* pool) {
  return reinterpret_cast<cudaMemPool_t>(pool->handle);
}

cudaError_t Allocate(const char* name, void** pointer, size_t bytes,
                     uint64_t pool, cudaStream_t stream) {
  if (pointer == nullptr) return Answer(cudasim::kInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  uint64_t address = 0;
  const cudasim::Status status =
      cudasim::AllocateAsync(name, bytes, pool, Number(stream), &address);
  if (status == cudasim::kOk) *pointer = reinterpret_cast<void*>(address);
  return Answer(status);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaMallocAsync(void** pointer, size_t bytes,
                                      cudaStream_t stream) {
  CUDASIM_ENTER("cudaMallocAsync");
  return Allocate("cudaMallocAsync", pointer, bytes, 0, stream);
}

cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** pointer, size_t bytes,
                                              cudaMemPool_t pool,
                                              cudaStream_t stream) {
  CUDASIM_ENTER("cudaMallocFromPoolAsync");
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  return Allocate("cudaMallocFromPoolAsync", pointer, bytes, Number(pool),
                  stream);
}

cudaError_t CUDARTAPI cudaFreeAsync(void* pointer, cudaStream_t stream) {
  CUDASIM_ENTER("cudaFreeAsync", kBroken);
  return Answer(
      cudasim::FreeAsync("cudaFreeAsync", Number(pointer), Number(stream)));
}

cudaError_t CUDARTAPI cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool,
                                                  int device) {
  CUDASIM_ENTER("cudaDeviceGetDefaultMemPool", kQuestion);
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *pool = Handle(sim.pools.Default(device));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  CUDASIM_ENTER("cudaDeviceGetMemPool", kQuestion);
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *pool = Handle(sim.pools.Current(device));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  CUDASIM_ENTER("cudaDeviceSetMemPool");
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.pools.SetCurrent(device, Number(pool)));
}

cudaError_t CUDARTAPI cudaMemPoolCreate(cudaMemPool_t* pool,
                                        const cudaMemPoolProps* props) {
  CUDASIM_ENTER("cudaMemPoolCreate");
  if (pool == nullptr || props == nullptr ||
      props->allocType != cudaMemAllocationTypePinned) {
    return Answer(cudasim::kInvalidValue);
  }
  if (props->location.type != cudaMemLocationTypeDevice ||
      props->handleTypes != cudaMemHandleTypeNone || props->maxSize != 0) {
    return static_cast<cudaError_t>(cudasim::Unsupported(
        "cudaMemPoolCreate (on the host, shared, or of a maximal size)"));
  }
  if (!IsDevice(props->location.id)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *pool = reinterpret_cast<cudaMemPool_t>(sim.pools.Create(props->location.id));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemPoolDestroy(cudaMemPool_t pool) {
  CUDASIM_ENTER("cudaMemPoolDestroy", kBroken);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.pools.Destroy(Number(pool)));
}

cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
  CUDASIM_ENTER("cudaMemPoolTrimTo");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  sim.pools.Trim(pool, keep);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t handle,
                                              cudaMemPoolAttr attribute,
                                              void* value) {
  CUDASIM_ENTER("cudaMemPoolSetAttribute");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || value == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(sim.pools.SetAttributeFrom(pool, attribute, value));
}

cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t handle,
                                              cudaMemPoolAttr attribute,
                                              void* value) {
  CUDASIM_ENTER("cudaMemPoolGetAttribute");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || value == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(sim.pools.GetAttributeInto(*pool, attribute, value));
}

cudaError_t CUDARTAPI cudaMemPoolSetAccess(cudaMemPool_t handle,
                                           const cudaMemAccessDesc* wanted,
                                           size_t count) {
  CUDASIM_ENTER("cudaMemPoolSetAccess");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || wanted == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  for (size_t i = 0; i < count; ++i) {
    if (wanted[i].location.type != cudaMemLocationTypeDevice) {
      return Answer(cudasim::kInvalidValue);
    }
    const cudasim::Status status = sim.pools.SetAccess(
        pool, wanted[i].location.id,
        static_cast<cudasim::Access>(static_cast<int>(wanted[i].flags)));
    if (status != cudasim::kOk) return Answer(status);
  }
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemPoolGetAccess(cudaMemAccessFlags* flags,
                                           cudaMemPool_t handle,
                                           cudaMemLocation* location) {
  CUDASIM_ENTER("cudaMemPoolGetAccess");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || flags == nullptr || location == nullptr ||
      location->type != cudaMemLocationTypeDevice) {
    return Answer(cudasim::kInvalidValue);
  }
  *flags = static_cast<cudaMemAccessFlags>(
      static_cast<int>(sim.pools.GetAccess(*pool, location->id)));
  return cudaSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
