// SPDX-License-Identifier: Apache-2.0
//
// The runtime's memory: allocation, pinned host memory, copies and fills.

#include <cuda_runtime_api.h>

#include <cstring>

#include "tests/simulator/cudasim/copies.h"
#include "tests/simulator/cudasim/memory.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Simulator;

namespace {

bool IsKind(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

cudaError_t CopyFlat(const char* name, void* to, const void* from, size_t bytes,
                     cudaMemcpyKind kind, cudaStream_t stream, bool blocking) {
  if (bytes == 0) return cudaSuccess;
  if (!IsKind(kind)) return Answer(cudasim::kInvalidDirection);
  cudasim::CopyRequest request;
  request.destination = Number(to);
  request.source = Number(from);
  request.width = bytes;
  request.direction = static_cast<cudasim::Direction>(static_cast<int>(kind));
  return Answer(cudasim::Copy(name, request, Number(stream), blocking));
}

cudaError_t Copy2D(const char* name, void* to, size_t to_pitch,
                   const void* from, size_t from_pitch, size_t width,
                   size_t height, cudaMemcpyKind kind, cudaStream_t stream,
                   bool blocking) {
  if (!IsKind(kind)) return Answer(cudasim::kInvalidDirection);
  if (to_pitch < width || from_pitch < width) {
    return Answer(cudasim::kInvalidPitch);
  }
  cudasim::CopyRequest request;
  request.destination = Number(to);
  request.source = Number(from);
  request.width = width;
  request.height = height;
  request.destination_pitch = to_pitch;
  request.source_pitch = from_pitch;
  request.direction = static_cast<cudasim::Direction>(static_cast<int>(kind));
  return Answer(cudasim::Copy(name, request, Number(stream), blocking));
}

cudaError_t Fill(const char* name, void* to, int value, size_t width,
                 size_t height, size_t pitch, cudaStream_t stream) {
  cudasim::FillRequest request;
  request.destination = Number(to);
  request.value = static_cast<unsigned char>(value);
  request.width = width;
  request.height = height;
  request.pitch = pitch;
  return Answer(cudasim::Fill(name, request, Number(stream)));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** pointer, size_t bytes) {
  CUDASIM_ENTER("cudaMalloc");
  if (pointer == nullptr) return Answer(cudasim::kInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const cudasim::Status unsafe = sim.captures.Unsafe();
      unsafe != cudasim::kOk) {
    return Answer(unsafe);
  }
  uint64_t address = 0;
  const int device = cudasim::ThisThread().device;
  cudasim::Status status = sim.addresses.Malloc(device, bytes, &address);
  if (status == cudasim::kOutOfMemory && sim.pools.GiveBack(device)) {
    status = sim.addresses.Malloc(device, bytes, &address);
  }
  if (status == cudasim::kOk) *pointer = reinterpret_cast<void*>(address);
  return Answer(status);
}

cudaError_t CUDARTAPI cudaFree(void* pointer) {
  CUDASIM_ENTER("cudaFree", kBroken);
  return Answer(cudasim::FreeDevice("cudaFree", Number(pointer)));
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free, size_t* total) {
  CUDASIM_ENTER("cudaMemGetInfo");
  if (free == nullptr || total == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.extents.Settle();
  const cudasim::DeviceMemory& memory =
      sim.extents.memory(cudasim::ThisThread().device);
  *total = memory.capacity;
  *free = memory.Free();
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMallocHost(void** pointer, size_t bytes) {
  CUDASIM_ENTER("cudaMallocHost");
  return Answer(cudasim::AllocateHost(pointer, bytes, 0));
}

cudaError_t CUDARTAPI cudaHostAlloc(void** pointer, size_t bytes,
                                    unsigned flags) {
  CUDASIM_ENTER("cudaHostAlloc");
  // Portable, mapped, write-combined.
  if ((flags & ~7u) != 0) return Answer(cudasim::kInvalidValue);
  return Answer(cudasim::AllocateHost(pointer, bytes, flags));
}

cudaError_t CUDARTAPI cudaFreeHost(void* pointer) {
  CUDASIM_ENTER("cudaFreeHost", kBroken);
  return Answer(cudasim::FreeHost("cudaFreeHost", pointer));
}

cudaError_t CUDARTAPI cudaHostRegister(void* pointer, size_t bytes,
                                       unsigned flags) {
  CUDASIM_ENTER("cudaHostRegister");
  // Portable, mapped, I/O memory, read-only.
  if ((flags & ~15u) != 0) return Answer(cudasim::kInvalidValue);
  return Answer(cudasim::RegisterHost(pointer, bytes, flags));
}

cudaError_t CUDARTAPI cudaHostUnregister(void* pointer) {
  CUDASIM_ENTER("cudaHostUnregister", kBroken);
  return Answer(cudasim::UnregisterHost("cudaHostUnregister", pointer));
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void** device, void* host,
                                               unsigned flags) {
  CUDASIM_ENTER("cudaHostGetDevicePointer");
  const cudasim::PointerInfo info = cudasim::DescribePointer(Number(host));
  if (device == nullptr || flags != 0 ||
      info.kind != cudasim::PointerKind::kPinnedHost) {
    return Answer(cudasim::kInvalidValue);
  }
  *device = host;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostGetFlags(unsigned* flags, void* host) {
  CUDASIM_ENTER("cudaHostGetFlags");
  if (flags == nullptr) return Answer(cudasim::kInvalidValue);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const cudasim::HostRange* range = sim.host.Find(Number(host), &start);
  if (range == nullptr) return Answer(cudasim::kInvalidValue);
  // With unified addresses everything pinned is mapped.
  *flags = range->flags | cudaHostAllocMapped;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* out,
                                               const void* pointer) {
  CUDASIM_ENTER("cudaPointerGetAttributes");
  if (out == nullptr) return Answer(cudasim::kInvalidValue);
  std::memset(out, 0, sizeof(*out));
  const cudasim::PointerInfo info = cudasim::DescribePointer(Number(pointer));
  void* const address = const_cast<void*>(pointer);
  switch (info.kind) {
    case cudasim::PointerKind::kUnknown:
      out->type = cudaMemoryTypeUnregistered;
      out->device = -2;  // cudaInvalidDeviceId
      out->hostPointer = address;
      break;
    case cudasim::PointerKind::kDevice:
      out->type = cudaMemoryTypeDevice;
      out->device = info.device;
      out->devicePointer = address;
      break;
    case cudasim::PointerKind::kPinnedHost:
      out->type = cudaMemoryTypeHost;
      out->device = info.device;
      out->devicePointer = address;
      out->hostPointer = info.host_readable ? address : nullptr;
      break;
  }
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, size_t bytes,
                                 cudaMemcpyKind kind) {
  CUDASIM_ENTER("cudaMemcpy");
  return CopyFlat("cudaMemcpy", to, from, bytes, kind, nullptr, true);
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                      cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemcpyAsync");
  return CopyFlat("cudaMemcpyAsync", to, from, bytes, kind, stream, false);
}

cudaError_t CUDARTAPI cudaMemcpy2D(void* to, size_t to_pitch, const void* from,
                                   size_t from_pitch, size_t width,
                                   size_t height, cudaMemcpyKind kind) {
  CUDASIM_ENTER("cudaMemcpy2D");
  return Copy2D("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height,
                kind, nullptr, true);
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* to, size_t to_pitch,
                                        const void* from, size_t from_pitch,
                                        size_t width, size_t height,
                                        cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemcpy2DAsync");
  return Copy2D("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width,
                height, kind, stream, false);
}

cudaError_t CUDARTAPI cudaMemset(void* to, int value, size_t bytes) {
  CUDASIM_ENTER("cudaMemset");
  return Fill("cudaMemset", to, value, bytes, 1, bytes, nullptr);
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, size_t bytes,
                                      cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemsetAsync");
  return Fill("cudaMemsetAsync", to, value, bytes, 1, bytes, stream);
}

cudaError_t CUDARTAPI cudaMemset2DAsync(void* to, size_t pitch, int value,
                                        size_t width, size_t height,
                                        cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemset2DAsync");
  return Fill("cudaMemset2DAsync", to, value, width, height, pitch, stream);
}

}  // extern "C"
#pragma GCC visibility pop
