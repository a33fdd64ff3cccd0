// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/devices.h"

#include <string>

#include "allocator/base/check.h"
#include "allocator/cuda/uncached.h"
#include "python_shim/bridge_api/imports.h"
#include "python_shim/bridge_api/operators.h"
#include "python_shim/core/core.h"

namespace stratalloc::core {

Result<MemoryInfo> GetMemoryInfo(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(Device cuda, Core::Get().Cuda(device));
  return cuda.GetMemoryInfo();
}

double MemoryFraction(int device) {
  return Core::Get().abandoned()
             ? 1.0
             : Allocator::Get().Fraction(static_cast<DeviceIndex>(device));
}

Status SetMemoryFraction(int device, double fraction) {
  STRATALLOC_RETURN_IF_ERROR(Core::Get().Opened(device));
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    return Fail(ErrorCode::kInvalidArgument,
                "invalid fraction: " + std::to_string(fraction) +
                    ". Please set within [0, 1].");
  }
  Allocator::Get().SetFraction(static_cast<DeviceIndex>(device), fraction);
  return {};
}

Bytes AllowedMemory(int device, Bytes total) {
  return DeviceLimit::Of(total, Core::Get().config().device.gpu_limit,
                         MemoryFraction(device));
}

Status EnablePeerAccess(int device, int peer) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * owner,
                              Core::Get().Device(peer));
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * reader,
                              Core::Get().Device(device));
  const auto from = static_cast<DeviceIndex>(peer);
  const auto to = static_cast<DeviceIndex>(device);
  STRATALLOC_RETURN_IF_ERROR(reader->device().EnablePeerAccess(from));
  STRATALLOC_RETURN_IF_ERROR(owner->EnablePeer(to));
  return owner->WhenReady([&] { return GrantImports(from, to); });
}

int CopyPeer(Address to, int to_device, Address from, int from_device,
             Bytes bytes, StreamId stream, bool p2p_enabled) {
  Result<Device> cuda = Core::Get().Cuda(to_device);
  if (!cuda) return 101;  // cudaErrorInvalidDevice
  return cuda->CopyPeer(to, static_cast<DeviceIndex>(to_device), from,
                        static_cast<DeviceIndex>(from_device), bytes, stream,
                        p2p_enabled);
}

int CopyData(Address to, Address from, Bytes bytes) {
  DeviceAllocator* device = Allocator::Get().FindByAddress(to);
  if (device == nullptr) device = Allocator::Get().FindByAddress(from);
  if (device == nullptr) {
    return UncachedCopy(reinterpret_cast<void*>(to),
                        reinterpret_cast<const void*>(from), bytes);
  }
  // Cloning and copy-on-write call this outside any operator: both ends must
  // be on the device while the copy runs.
  const Access ends[2] = {{from, bytes, false}, {to, bytes, true}};
  if (!EnterOperator(static_cast<int>(device->device().index()), kDefaultStream,
                     "copy_data", ends)) {
    return 2;  // cudaErrorMemoryAllocation
  }
  Status done = device->device().CopyOnDevice(to, from, bytes, kDefaultStream);
  if (done) done = device->device().SynchronizeStream(kDefaultStream);
  LeaveOperator();
  if (done) return 0;
  Log(LogLevel::kError, "copy_data: " + done.error().message);
  return 999;  // cudaErrorUnknown
}

int UncachedMalloc(Bytes size, void** out) {
  *out = nullptr;
  return size == 0 ? 0 : stratalloc::UncachedMalloc(size, out);
}

int UncachedFree(void* ptr) {
  return ptr == nullptr ? 0 : stratalloc::UncachedFree(ptr);
}

}  // namespace stratalloc::core
