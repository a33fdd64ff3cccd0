// SPDX-License-Identifier: Apache-2.0
//
// The driver's peer access, and the copies that name both contexts.

#include <cuda.h>

#include <cstdio>

#include "tests/simulator/cudasim/contexts.h"
#include "tests/simulator/cudasim/copies.h"
#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/driver.h"

using cudasim::Lock;
using cudasim::Simulator;
using cudasim::ThisThread;
using cudasim::driver::Answer;

namespace {

bool IsDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

int DeviceOf(CUcontext context) {
  return cudasim::DeviceOfContext(reinterpret_cast<uint64_t>(context),
                                  Simulator::Get().config.devices);
}

CUresult CopyPeer(const char* name, CUdeviceptr to, CUcontext to_context,
                  CUdeviceptr from, CUcontext from_context, size_t bytes,
                  CUstream stream, bool blocking) {
  if (DeviceOf(to_context) < 0 || DeviceOf(from_context) < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  cudasim::CopyRequest request;
  request.destination = to;
  request.source = from;
  request.width = bytes;
  request.direction = cudasim::Direction::kDeviceToDevice;
  request.peer = true;
  return Answer(cudasim::Copy(name, request, reinterpret_cast<uint64_t>(stream),
                              blocking));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device,
                                       CUdevice peer) {
  CUDASIM_ENTER("cuDeviceCanAccessPeer", cudasim::Entry::kQuestion);
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device) || !IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = Simulator::Get().peers.Can(device, peer) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value,
                                         CUdevice_P2PAttribute attribute,
                                         CUdevice device, CUdevice peer) {
  CUDASIM_ENTER("cuDeviceGetP2PAttribute", cudasim::Entry::kQuestion);
  return Answer(Simulator::Get().peers.Attribute(static_cast<int>(attribute),
                                                 device, peer, value));
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  CUDASIM_ENTER("cuDeviceGetByPCIBusId", cudasim::Entry::kQuestion);
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int found =
      cudasim::DeviceByBusId(text, Simulator::Get().config.devices);
  if (found < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = found;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  CUDASIM_ENTER("cuDeviceGetPCIBusId", cudasim::Entry::kQuestion);
  if (text == nullptr || bytes < 1) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, bytes, "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CUDASIM_ENTER("cuCtxEnablePeerAccess");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = DeviceOf(peer);
  if (device < 0 || ThisThread().no_context || device == ThisThread().device) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.peers.Enable(ThisThread().device, device));
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  CUDASIM_ENTER("cuCtxDisablePeerAccess");
  const int device = DeviceOf(peer);
  if (device < 0 || ThisThread().no_context) return CUDA_ERROR_INVALID_CONTEXT;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return Answer(sim.peers.Disable(ThisThread().device, device));
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context,
                              CUdeviceptr from, CUcontext from_context,
                              size_t bytes) {
  CUDASIM_ENTER("cuMemcpyPeer");
  return CopyPeer("cuMemcpyPeer", to, to_context, from, from_context, bytes,
                  nullptr, true);
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context,
                                   CUdeviceptr from, CUcontext from_context,
                                   size_t bytes, CUstream stream) {
  CUDASIM_ENTER("cuMemcpyPeerAsync");
  return CopyPeer("cuMemcpyPeerAsync", to, to_context, from, from_context,
                  bytes, stream, false);
}

}  // extern "C"
#pragma GCC visibility pop
