// SPDX-License-Identifier: Apache-2.0
//
// The runtime's peer access, and the copies that name both devices.

#include <cuda_runtime_api.h>

#include "tests/simulator/cudasim/copies.h"
#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::IsDevice;
using cudasim::kQuestion;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Simulator;
using cudasim::ThisThread;

namespace {

cudaError_t CopyPeer(const char* name, void* to, int to_device,
                     const void* from, int from_device, size_t bytes,
                     cudaStream_t stream, bool blocking) {
  if (!IsDevice(to_device) || !IsDevice(from_device)) {
    return Answer(cudasim::kInvalidDevice);
  }
  cudasim::CopyRequest request;
  request.destination = Number(to);
  request.source = Number(from);
  request.width = bytes;
  request.direction = cudasim::Direction::kDeviceToDevice;
  request.peer = true;
  return Answer(cudasim::Copy(name, request, Number(stream), blocking));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  CUDASIM_ENTER("cudaDeviceCanAccessPeer", kQuestion);
  if (can == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device) || !IsDevice(peer)) {
    return Answer(cudasim::kInvalidDevice);
  }
  *can = Simulator::Get().peers.Can(device, peer) ? 1 : 0;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CUDASIM_ENTER("cudaDeviceEnablePeerAccess");
  if (flags != 0) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(peer)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.peers.Enable(ThisThread().device, peer));
}

cudaError_t CUDARTAPI cudaDeviceDisablePeerAccess(int peer) {
  CUDASIM_ENTER("cudaDeviceDisablePeerAccess");
  if (!IsDevice(peer)) return Answer(cudasim::kInvalidDevice);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.peers.Disable(ThisThread().device, peer));
}

cudaError_t CUDARTAPI cudaDeviceGetP2PAttribute(int* value,
                                                cudaDeviceP2PAttr attribute,
                                                int device, int peer) {
  CUDASIM_ENTER("cudaDeviceGetP2PAttribute", kQuestion);
  return Answer(Simulator::Get().peers.Attribute(static_cast<int>(attribute),
                                                 device, peer, value));
}

cudaError_t CUDARTAPI cudaDeviceGetByPCIBusId(int* device, const char* text) {
  CUDASIM_ENTER("cudaDeviceGetByPCIBusId", kQuestion);
  const int found =
      cudasim::DeviceByBusId(text, Simulator::Get().config.devices);
  if (device == nullptr || text == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  if (found < 0) return Answer(cudasim::kInvalidDevice);
  *device = found;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyPeer(void* to, int to_device, const void* from,
                                     int from_device, size_t bytes) {
  CUDASIM_ENTER("cudaMemcpyPeer");
  return CopyPeer("cudaMemcpyPeer", to, to_device, from, from_device, bytes,
                  nullptr, true);
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* to, int to_device,
                                          const void* from, int from_device,
                                          size_t bytes, cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemcpyPeerAsync");
  return CopyPeer("cudaMemcpyPeerAsync", to, to_device, from, from_device,
                  bytes, stream, false);
}

}  // extern "C"
#pragma GCC visibility pop
