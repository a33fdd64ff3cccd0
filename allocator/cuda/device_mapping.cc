// SPDX-License-Identifier: Apache-2.0
// Virtual memory of a device: reservations, physical handles, mappings.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "allocator/cuda/cuda_api.h"
#include "allocator/cuda/current_device.h"
#include "allocator/cuda/device.h"
#include "allocator/cuda/device_calls.h"

namespace stratalloc {

Result<Address> Device::ReserveAddress(Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  CUdeviceptr address = 0;
  STRATALLOC_DRIVER(api_->cuMemAddressReserve(&address, bytes, 0, 0, 0),
                    "cuMemAddressReserve");
  return static_cast<Address>(address);
}

Status Device::FreeAddress(Address address, Bytes bytes) const {
  STRATALLOC_DRIVER(api_->cuMemAddressFree(address, bytes), "cuMemAddressFree");
  return {};
}

Result<PhysicalHandle> Device::CreateHandle(Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  CUmemAllocationProp properties = PinnedOn(index_);
  properties.requestedHandleTypes =
      kind_.exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                       : CU_MEM_HANDLE_TYPE_NONE;
  properties.allocFlags.gpuDirectRDMACapable = kind_.rdma ? 1 : 0;
  CUmemGenericAllocationHandle handle = 0;
  STRATALLOC_DRIVER(api_->cuMemCreate(&handle, bytes, &properties, 0),
                    "cuMemCreate");
  return PhysicalHandle{handle};
}

Status Device::ReleaseHandle(PhysicalHandle handle) const {
  STRATALLOC_DRIVER(api_->cuMemRelease(Raw(handle)), "cuMemRelease");
  return {};
}

Status Device::Map(Address address, Bytes bytes, PhysicalHandle handle) const {
  STRATALLOC_DRIVER(api_->cuMemMap(address, bytes, 0, Raw(handle), 0),
                    "cuMemMap");
  return {};
}

Status Device::GrantAccess(Address address, Bytes bytes,
                           const std::vector<DeviceIndex>& peers) const {
  const auto right = [](DeviceIndex to) {
    CUmemAccessDesc access{};
    access.location = LocationOf(to);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
  };
  std::vector<CUmemAccessDesc> rights{right(index_)};
  for (DeviceIndex peer : peers) rights.push_back(right(peer));
  STRATALLOC_DRIVER(
      api_->cuMemSetAccess(address, bytes, rights.data(), rights.size()),
      "cuMemSetAccess");
  return {};
}

Status Device::Unmap(Address address, Bytes bytes) const {
  STRATALLOC_DRIVER(api_->cuMemUnmap(address, bytes), "cuMemUnmap");
  return {};
}

Result<int> Device::ExportHandle(PhysicalHandle handle) const {
  if (!kind_.exportable) {
    return Fail(
        ErrorCode::kUnsupported,
        "memory of GPU " + std::to_string(static_cast<int>(index_)) +
            " cannot be given to another process, because the driver "
            "makes no memory for that" +
            (why_not_exportable_.empty() ? "" : ": " + why_not_exportable_) +
            ". Send a copy on the CPU");
  }
  int descriptor = -1;
  STRATALLOC_DRIVER(api_->cuMemExportToShareableHandle(
                        &descriptor, Raw(handle),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    "cuMemExportToShareableHandle");
  return descriptor;
}

Result<PhysicalHandle> Device::ImportDescriptor(int descriptor) const {
  STRATALLOC_ON_DEVICE(index_);
  CUmemGenericAllocationHandle handle = 0;
  STRATALLOC_DRIVER(
      api_->cuMemImportFromShareableHandle(
          &handle, reinterpret_cast<void*>(std::intptr_t{descriptor}),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  return PhysicalHandle{handle};
}

Result<PhysicalHandle> Device::ImportFabric(const void* fabric_handle) const {
  STRATALLOC_ON_DEVICE(index_);
  CUmemFabricHandle fabric;
  std::memcpy(&fabric, fabric_handle, sizeof fabric);
  CUmemGenericAllocationHandle handle = 0;
  STRATALLOC_DRIVER(api_->cuMemImportFromShareableHandle(
                        &handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
                    "cuMemImportFromShareableHandle");
  return PhysicalHandle{handle};
}

}  // namespace stratalloc
