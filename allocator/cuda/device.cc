// SPDX-License-Identifier: Apache-2.0
// One device: its card, cudaMalloc and peers.
#include "allocator/cuda/device.h"

#include <cstring>
#include <string>
#include <utility>

#include "allocator/cuda/cuda_api.h"
#include "allocator/cuda/current_device.h"
#include "allocator/cuda/device_calls.h"

namespace stratalloc {

Result<Device> Device::Open(DeviceIndex index) {
  STRATALLOC_ASSIGN_OR_RETURN(const CudaApi* api_, CudaApi::Get());
  CUresult refused = CUDA_SUCCESS;
  if (PrimaryContext(*api_, index, &refused) == nullptr) {
    return tl::unexpected(
        DriverError(*api_, "cuDevicePrimaryCtxRetain", refused));
  }
  STRATALLOC_ON_DEVICE(index);
  CUdevice device = 0;
  int supported = 0;
  STRATALLOC_DRIVER(api_->cuDeviceGet(&device, static_cast<int>(index)),
                    "cuDeviceGet");
  STRATALLOC_DRIVER(
      api_->cuDeviceGetAttribute(
          &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          device),
      "cuDeviceGetAttribute");
  if (supported == 0) {
    return Device(api_, index, 0)
        .WithoutVirtualMemory("it has no virtual memory management");
  }
  const CUmemAllocationProp properties = PinnedOn(index);
  std::size_t granularity = 0;
  STRATALLOC_DRIVER(
      api_->cuMemGetAllocationGranularity(&granularity, &properties,
                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return Device(api_, index, granularity);
}

Device Device::WithHandles(HandleKind kind, std::string why) const {
  Device device = *this;
  device.kind_ = kind;
  device.why_not_exportable_ = std::move(why);
  return device;
}

Device Device::WithoutVirtualMemory(std::string why) const {
  Device device = *this;
  device.granularity_ = 0;
  device.why_unmanaged_ = std::move(why);
  return device;
}

bool Device::SaysRdma() const {
  CUdevice device = 0;
  int says = 0;
  return api_->cuDeviceGet(&device, static_cast<int>(index_)) == CUDA_SUCCESS &&
         api_->cuDeviceGetAttribute(
             &says, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
             device) == CUDA_SUCCESS &&
         says != 0;
}

Result<Card> Device::Look(DeviceIndex index) {
  STRATALLOC_ASSIGN_OR_RETURN(const CudaApi* api_, CudaApi::Get());
  CUdevice device = 0;
  STRATALLOC_DRIVER(api_->cuDeviceGet(&device, static_cast<int>(index)),
                    "cuDeviceGet");
  std::size_t memory = 0;
  STRATALLOC_DRIVER(api_->cuDeviceTotalMem(&memory, device),
                    "cuDeviceTotalMem");
  int supported = 0;
  STRATALLOC_DRIVER(
      api_->cuDeviceGetAttribute(
          &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          device),
      "cuDeviceGetAttribute");
  return Card{memory, supported != 0};
}

Result<Address> Device::Malloc(Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  void* address = nullptr;
  STRATALLOC_CUDA(api_->cudaMalloc(&address, bytes), "cudaMalloc");
  return reinterpret_cast<Address>(address);
}

Status Device::FreeMalloc(Address address) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaFree(reinterpret_cast<void*>(address)), "cudaFree");
  return {};
}

Status Device::ExportMalloc(Address address, void* malloc_handle) const {
  STRATALLOC_ON_DEVICE(index_);
  static_assert(sizeof(cudaIpcMemHandle_t) == kMallocHandleBytes);
  STRATALLOC_CUDA(
      api_->cudaIpcGetMemHandle(static_cast<cudaIpcMemHandle_t*>(malloc_handle),
                                reinterpret_cast<void*>(address)),
      "cudaIpcGetMemHandle");
  return {};
}

Result<Address> Device::OpenMalloc(const void* malloc_handle) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, malloc_handle, sizeof handle);
  void* address = nullptr;
  STRATALLOC_CUDA(api_->cudaIpcOpenMemHandle(&address, handle,
                                             cudaIpcMemLazyEnablePeerAccess),
                  "cudaIpcOpenMemHandle");
  return reinterpret_cast<Address>(address);
}

Status Device::CloseMalloc(Address address) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaIpcCloseMemHandle(reinterpret_cast<void*>(address)),
                  "cudaIpcCloseMemHandle");
  return {};
}

Result<MemoryInfo> Device::GetMemoryInfo() const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  std::size_t free = 0, total = 0;
  STRATALLOC_CUDA(api_->cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return MemoryInfo{free, total};
}

Status Device::EnablePeerAccess(DeviceIndex peer) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  const cudaError_t error =
      api_->cudaDeviceEnablePeerAccess(static_cast<int>(peer), 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    api_->cudaGetLastError();
    return {};
  }
  STRATALLOC_CUDA(error, "cudaDeviceEnablePeerAccess");
  return {};
}

}  // namespace stratalloc
