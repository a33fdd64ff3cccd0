// SPDX-License-Identifier: Apache-2.0
//
// The driver's virtual memory management and plain device memory.

#include <cuda.h>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/memory.h"
#include "tests/simulator/cudasim/refusals.h"

namespace cudasim {
namespace {

Access AccessOf(CUmemAccess_flags flags) {
  return static_cast<Access>(static_cast<int>(flags));
}

// Is this a device that has no virtual memory management?
bool IsPlain(const CUmemLocation& location) {
  const Simulator& sim = Simulator::Get();
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
         location.id < sim.config.devices && !sim.HasVirtualMemory(location.id);
}

bool IsExportable(CUmemAllocationHandleType types) {
  return types == CU_MEM_HANDLE_TYPE_NONE ||
         types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

bool ExportsHandles(const CUmemLocation& location) {
  return location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
         location.id >= Simulator::Get().config.devices ||
         CardOf(location.id).exports_handles != 0;
}

// A hint is an address of a page.
constexpr uint64_t kHintMultiple = 4096;

// Some platforms make handles for RDMA and then map none of them.
bool GrantsRdma(const Simulator& sim, uint64_t address, uint64_t bytes) {
  uint64_t start = 0;
  for (uint64_t at = address; at < address + bytes;) {
    const Mapping* mapping = sim.addresses.FindMapping(at, &start);
    if (mapping == nullptr) return true;  // SetAccess says what is wrong
    const Extent& extent = *mapping->extent;
    if (extent.rdma_capable && extent.location == Location::kDevice &&
        CardOf(extent.device).rdma_handles == 0) {
      return false;
    }
    at = start + mapping->bytes;
  }
  return true;
}

}  // namespace
}  // namespace cudasim

using cudasim::Lock;
using cudasim::Simulator;
using cudasim::driver::Answer;

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(
    size_t* granularity, const CUmemAllocationProp* prop,
    CUmemAllocationGranularity_flags option) {
  CUDASIM_ENTER("cuMemGetAllocationGranularity");
  // Neither the type nor the device is looked at.
  if (granularity == nullptr || prop == nullptr ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (cudasim::IsPlain(prop->location)) {
    return Answer(
        cudasim::Refusals::Get().Refuse("cuMemGetAllocationGranularity"));
  }
  *granularity = cudasim::kGranularity;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* pointer, size_t size,
                                     size_t alignment, CUdeviceptr address,
                                     unsigned long long flags) {
  CUDASIM_ENTER("cuMemAddressReserve");
  if (pointer == nullptr || flags != 0 ||
      address % cudasim::kHintMultiple != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const cudasim::Status status =
      sim.addresses.Reserve(size, alignment, address, &start);
  if (status == cudasim::kOk) *pointer = start;
  return Answer(status);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  CUDASIM_ENTER("cuMemAddressFree", cudasim::Entry::kAllowedWhenBroken);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (sim.addresses.IsMalloc(pointer)) return CUDA_ERROR_INVALID_VALUE;
  return Answer(sim.addresses.Free(pointer, size));
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop,
                             unsigned long long flags) {
  CUDASIM_ENTER("cuMemCreate");
  if (handle == nullptr || prop == nullptr || flags != 0 ||
      prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (cudasim::IsPlain(prop->location)) {
    return Answer(cudasim::Refusals::Get().Refuse("cuMemCreate"));
  }
  // Fabric handles need hardware that is not there; torch tries them first.
  if (!cudasim::IsExportable(prop->requestedHandleTypes)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      !cudasim::ExportsHandles(prop->location)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
      !sim.pressure.CanPin(size, sim.host, sim.extents)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  cudasim::Extent* extent = nullptr;
  const auto location = static_cast<cudasim::Location>(prop->location.type);
  const int device = prop->location.id;
  cudasim::Status status = sim.extents.Create(location, device, size, &extent);
  if (status == cudasim::kOutOfMemory && sim.pools.GiveBack(device)) {
    status = sim.extents.Create(location, device, size, &extent);
  }
  if (status != cudasim::kOk) return Answer(status);
  extent->handle_types = prop->requestedHandleTypes;
  extent->rdma_capable = prop->allocFlags.gpuDirectRDMACapable != 0;
  *handle = extent->id;
  const bool on_device = location == cudasim::Location::kDevice;
  const cudasim::Card& card =
      on_device ? cudasim::CardOf(device) : cudasim::CurrentCard();
  sim.ChargeExtra(card,
                  on_device ? card.create_ns_per_gib : card.pin_ns_per_gib,
                  static_cast<double>(size) / (uint64_t{1} << 30));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUDASIM_ENTER("cuMemRelease");
  return Answer(cudasim::ReleaseHandle("cuMemRelease", handle));
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  CUDASIM_ENTER("cuMemMap");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.addresses.Map(pointer, size, offset, handle));
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, size_t size) {
  CUDASIM_ENTER("cuMemUnmap");
  return Answer(cudasim::UnmapRange("cuMemUnmap", pointer, size));
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr pointer, size_t size,
                                const CUmemAccessDesc* descriptions,
                                size_t count) {
  CUDASIM_ENTER("cuMemSetAccess");
  if (descriptions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (sim.addresses.IsMalloc(pointer)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& wanted = descriptions[i];
    if (wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (cudasim::IsPlain(wanted.location)) {
      return Answer(cudasim::Refusals::Get().Refuse("cuMemSetAccess"));
    }
    if (wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        wanted.location.id >= 0 && wanted.location.id < sim.config.devices &&
        !sim.pressure.HasPageTables(sim.extents.memory(wanted.location.id))) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        !cudasim::GrantsRdma(sim, pointer, size)) {
      return CUDA_ERROR_UNKNOWN;
    }
    const cudasim::Status status = sim.addresses.SetAccess(
        pointer, size, static_cast<cudasim::Location>(wanted.location.type),
        wanted.location.id, cudasim::AccessOf(wanted.flags));
    if (status != cudasim::kOk) return Answer(status);
    if (wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      const cudasim::Card& card = cudasim::CardOf(wanted.location.id);
      sim.ChargeExtra(
          card, card.grant_ns,
          static_cast<double>(sim.addresses.CountMappings(pointer, size)));
    }
  }
  sim.addresses.SetReadyAt(pointer, size, sim.clock.Now());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags,
                                const CUmemLocation* location,
                                CUdeviceptr pointer) {
  CUDASIM_ENTER("cuMemGetAccess");
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  cudasim::Access access = cudasim::Access::kNone;
  const cudasim::Status status = sim.addresses.GetAccess(
      pointer, static_cast<cudasim::Location>(location->type), location->id,
      &access);
  if (status == cudasim::kOk) *flags = static_cast<int>(access);
  return Answer(status);
}

CUresult CUDAAPI cuMemRetainAllocationHandle(
    CUmemGenericAllocationHandle* handle, void* pointer) {
  CUDASIM_ENTER("cuMemRetainAllocationHandle");
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const cudasim::Mapping* mapping =
      sim.addresses.FindMapping(reinterpret_cast<uint64_t>(pointer), &start);
  if (mapping == nullptr || mapping->extent->from_malloc ||
      mapping->extent->pooled) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim.extents.Retain(mapping->extent);
  *handle = mapping->extent->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  CUDASIM_ENTER("cuMemGetAllocationPropertiesFromHandle");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const cudasim::Extent* extent = sim.extents.Find(handle);
  if (prop == nullptr || extent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = CUmemAllocationProp{};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(extent->handle_types);
  prop->location.type =
      static_cast<CUmemLocationType>(static_cast<int>(extent->location));
  prop->location.id = extent->device;
  prop->allocFlags.gpuDirectRDMACapable = extent->rdma_capable ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetInfo(size_t* free, size_t* total) {
  CUDASIM_ENTER("cuMemGetInfo");
  CUDASIM_NEEDS_CONTEXT();
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.extents.Settle();
  const cudasim::DeviceMemory& memory =
      sim.extents.memory(cudasim::ThisThread().device);
  *total = memory.capacity;
  *free = memory.Free();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  CUDASIM_ENTER("cuMemAlloc");
  CUDASIM_NEEDS_CONTEXT();
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const cudasim::Status unsafe = sim.captures.Unsafe();
      unsafe != cudasim::kOk) {
    return Answer(unsafe);
  }
  uint64_t start = 0;
  const int device = cudasim::ThisThread().device;
  cudasim::Status status = sim.addresses.Malloc(device, bytes, &start);
  if (status == cudasim::kOutOfMemory && sim.pools.GiveBack(device)) {
    status = sim.addresses.Malloc(device, bytes, &start);
  }
  if (status == cudasim::kOk) *pointer = start;
  return Answer(status);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr pointer) {
  CUDASIM_ENTER("cuMemFree", cudasim::Entry::kAllowedWhenBroken);
  return Answer(cudasim::FreeDevice("cuMemFree", pointer));
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, size_t* size,
                                      CUdeviceptr pointer) {
  CUDASIM_ENTER("cuMemGetAddressRange");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const cudasim::Mapping* mapping = sim.addresses.FindMapping(pointer, &start);
  if (mapping == nullptr) {
    const cudasim::HostRange* range = sim.host.Find(pointer, &start);
    if (range == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = start;
    if (size != nullptr) *size = range->bytes;
    return CUDA_SUCCESS;
  }
  uint64_t bytes = mapping->bytes;
  cudasim::Pool* pool = nullptr;
  if (mapping->extent->pooled &&
      !sim.pools.FindBlock(pointer, &start, &bytes, &pool)) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) *base = start;
  if (size != nullptr) *size = bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocHost(void** pointer, size_t bytes) {
  CUDASIM_ENTER("cuMemAllocHost");
  CUDASIM_NEEDS_CONTEXT();
  return Answer(cudasim::AllocateHost(pointer, bytes, 0));
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  CUDASIM_ENTER("cuMemHostAlloc");
  CUDASIM_NEEDS_CONTEXT();
  if ((flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Answer(cudasim::AllocateHost(pointer, bytes, flags));
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
  CUDASIM_ENTER("cuMemFreeHost", cudasim::Entry::kAllowedWhenBroken);
  return Answer(cudasim::FreeHost("cuMemFreeHost", pointer));
}

CUresult CUDAAPI cuMemHostRegister(void* pointer, size_t bytes,
                                   unsigned flags) {
  CUDASIM_ENTER("cuMemHostRegister");
  CUDASIM_NEEDS_CONTEXT();
  if ((flags & ~15u) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Answer(cudasim::RegisterHost(pointer, bytes, flags));
}

CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
  CUDASIM_ENTER("cuMemHostUnregister", cudasim::Entry::kAllowedWhenBroken);
  return Answer(cudasim::UnregisterHost("cuMemHostUnregister", pointer));
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* device, void* host,
                                           unsigned flags) {
  CUDASIM_ENTER("cuMemHostGetDevicePointer");
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const uint64_t address = reinterpret_cast<uint64_t>(host);
  if (device == nullptr || flags != 0 ||
      sim.host.Find(address, &start) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = address;
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
