// SPDX-License-Identifier: Apache-2.0
// Copies from, to and on a device, and pinned host memory.
#include "allocator/cuda/cuda_api.h"
#include "allocator/cuda/current_device.h"
#include "allocator/cuda/device.h"
#include "allocator/cuda/device_calls.h"

namespace stratalloc {

Status Device::CopyToHost(void* to, Address from, Bytes bytes,
                          StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(
      api_->cudaMemcpyAsync(to, reinterpret_cast<const void*>(from), bytes,
                            cudaMemcpyDeviceToHost, ToCuda(stream)),
      "cudaMemcpyAsync (device to host)");
  return {};
}

Status Device::CopyToDevice(Address to, const void* from, Bytes bytes,
                            StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(
      api_->cudaMemcpyAsync(reinterpret_cast<void*>(to), from, bytes,
                            cudaMemcpyHostToDevice, ToCuda(stream)),
      "cudaMemcpyAsync (host to device)");
  return {};
}

Status Device::CopyOnDevice(Address to, Address from, Bytes bytes,
                            StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(
      api_->cudaMemcpyAsync(reinterpret_cast<void*>(to),
                            reinterpret_cast<const void*>(from), bytes,
                            cudaMemcpyDeviceToDevice, ToCuda(stream)),
      "cudaMemcpyAsync (device to device)");
  return {};
}

Status Device::FillWithZeros(Address to, Bytes bytes, StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(api_->cudaMemsetAsync(reinterpret_cast<void*>(to), 0, bytes,
                                        ToCuda(stream)),
                  "cudaMemsetAsync");
  return {};
}

int Device::CopyPeer(Address to, DeviceIndex to_device, Address from,
                     DeviceIndex from_device, Bytes bytes, StreamId stream,
                     bool p2p_enabled) const {
  void* const dst = reinterpret_cast<void*>(to);
  const void* const src = reinterpret_cast<const void*>(from);
  // Ranges mapped through VMM are not reachable by a plain copy between
  // devices unless peer access was granted; the peer copy stages by itself.
  if (!p2p_enabled && to_device != from_device) {
    return api_->cudaMemcpyPeerAsync(dst, static_cast<int>(to_device), src,
                                     static_cast<int>(from_device), bytes,
                                     ToCuda(stream));
  }
  return api_->cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice,
                               ToCuda(stream));
}

Status Device::RegisterHost(void* address, Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(
      api_->cudaHostRegister(address, bytes, cudaHostRegisterPortable),
      "cudaHostRegister");
  return {};
}

Status Device::UnregisterHost(void* address) const {
  CurrentDevice current(*api_, index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaHostUnregister(address), "cudaHostUnregister");
  return {};
}

}  // namespace stratalloc
