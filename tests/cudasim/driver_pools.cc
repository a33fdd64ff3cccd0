// SPDX-License-Identifier: Apache-2.0
//
// The driver's stream-ordered memory and its pools.

#include <cuda.h>

#include "tests/cudasim/pools.h"
#include "tests/cudasim/simulator.h"

#define CUDASIM_ANSWER(status) static_cast<CUresult>(status)

using cudasim::Lock;
using cudasim::Pool;
using cudasim::Simulator;

namespace {

constexpr auto kBroken = cudasim::Entry::kAllowedWhenBroken;
constexpr auto kQuestion = cudasim::Entry::kQuestion;

CUresult Answer(cudasim::Status status) {
  return static_cast<CUresult>(status);
}

template <typename Type>
uint64_t Number(Type handle) {
  return reinterpret_cast<uint64_t>(handle);
}

bool IsDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

CUmemoryPool Handle(const Pool* pool) {
  return reinterpret_cast<CUmemoryPool>(pool->handle);
}

CUresult Allocate(const char* name, CUdeviceptr* pointer, size_t bytes,
                  uint64_t pool, CUstream stream) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  const cudasim::Status status =
      cudasim::AllocateAsync(name, bytes, pool, Number(stream), &address);
  if (status == cudasim::kOk) *pointer = address;
  return Answer(status);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes,
                                 CUstream stream) {
  CUDASIM_ENTER("cuMemAllocAsync");
  CUDASIM_NEEDS_CONTEXT();
  return Allocate("cuMemAllocAsync", pointer, bytes, 0, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes,
                                         CUmemoryPool pool, CUstream stream) {
  CUDASIM_ENTER("cuMemAllocFromPoolAsync");
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  return Allocate("cuMemAllocFromPoolAsync", pointer, bytes, Number(pool),
                  stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  CUDASIM_ENTER("cuMemFreeAsync", kBroken);
  return Answer(cudasim::FreeAsync("cuMemFreeAsync", pointer, Number(stream)));
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, int device) {
  CUDASIM_ENTER("cuDeviceGetDefaultMemPool", kQuestion);
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *pool = Handle(sim.pools.Default(device));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, int device) {
  CUDASIM_ENTER("cuDeviceGetMemPool", kQuestion);
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *pool = Handle(sim.pools.Current(device));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(int device, CUmemoryPool pool) {
  CUDASIM_ENTER("cuDeviceSetMemPool");
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.pools.SetCurrent(device, Number(pool)));
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool,
                                 const CUmemPoolProps* props) {
  CUDASIM_ENTER("cuMemPoolCreate");
  if (pool == nullptr || props == nullptr ||
      props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return Answer(cudasim::kInvalidValue);
  }
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      props->handleTypes != CU_MEM_HANDLE_TYPE_NONE || props->maxSize != 0) {
    return static_cast<CUresult>(cudasim::Unsupported(
        "cuMemPoolCreate (on the host, shared, or of a maximal size)"));
  }
  if (!IsDevice(props->location.id)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *pool = reinterpret_cast<CUmemoryPool>(sim.pools.Create(props->location.id));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
  CUDASIM_ENTER("cuMemPoolDestroy", kBroken);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.pools.Destroy(Number(pool)));
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  CUDASIM_ENTER("cuMemPoolTrimTo");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  sim.pools.Trim(pool, keep);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle,
                                       CUmemPool_attribute attribute,
                                       void* value) {
  CUDASIM_ENTER("cuMemPoolSetAttribute");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || value == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(sim.pools.SetAttributeFrom(pool, attribute, value));
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle,
                                       CUmemPool_attribute attribute,
                                       void* value) {
  CUDASIM_ENTER("cuMemPoolGetAttribute");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || value == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(sim.pools.GetAttributeInto(*pool, attribute, value));
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle,
                                    const CUmemAccessDesc* wanted,
                                    size_t count) {
  CUDASIM_ENTER("cuMemPoolSetAccess");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || wanted == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  for (size_t i = 0; i < count; ++i) {
    if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return Answer(cudasim::kInvalidValue);
    }
    const cudasim::Status status = sim.pools.SetAccess(
        pool, wanted[i].location.id,
        static_cast<cudasim::Access>(static_cast<int>(wanted[i].flags)));
    if (status != cudasim::kOk) return Answer(status);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags,
                                    CUmemoryPool handle,
                                    CUmemLocation* location) {
  CUDASIM_ENTER("cuMemPoolGetAccess");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Pool* pool = sim.pools.Find(Number(handle));
  if (pool == nullptr || flags == nullptr || location == nullptr ||
      location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return Answer(cudasim::kInvalidValue);
  }
  *flags = static_cast<CUmemAccess_flags>(
      static_cast<int>(sim.pools.GetAccess(*pool, location->id)));
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
