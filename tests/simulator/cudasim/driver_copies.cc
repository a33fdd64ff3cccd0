// SPDX-License-Identifier: Apache-2.0
//
// The driver's copies and fills.

#include <cuda.h>

#include "tests/simulator/cudasim/copies.h"
#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/simulator.h"

namespace {

using cudasim::Direction;

CUresult CopyFlat(const char* name, uint64_t to, uint64_t from, size_t bytes,
                  Direction direction, CUstream stream, bool blocking) {
  cudasim::CopyRequest request;
  request.destination = to;
  request.source = from;
  request.width = bytes;
  request.direction = direction;
  return static_cast<CUresult>(cudasim::Copy(
      name, request, reinterpret_cast<uint64_t>(stream), blocking));
}

CUresult Copy2D(const char* name, const CUDA_MEMCPY2D* copy, CUstream stream,
                bool blocking) {
  if (copy == nullptr || copy->srcMemoryType == CU_MEMORYTYPE_ARRAY ||
      copy->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto start = [](CUmemorytype type, const void* host,
                        CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host)
                                      : uint64_t{device};
  };
  cudasim::CopyRequest request;
  request.width = copy->WidthInBytes;
  request.height = copy->Height;
  request.source_pitch = copy->srcPitch;
  request.destination_pitch = copy->dstPitch;
  request.source = start(copy->srcMemoryType, copy->srcHost, copy->srcDevice) +
                   copy->srcY * copy->srcPitch + copy->srcXInBytes;
  request.destination =
      start(copy->dstMemoryType, copy->dstHost, copy->dstDevice) +
      copy->dstY * copy->dstPitch + copy->dstXInBytes;
  return static_cast<CUresult>(cudasim::Copy(
      name, request, reinterpret_cast<uint64_t>(stream), blocking));
}

CUresult FillFlat(const char* name, CUdeviceptr to, unsigned value,
                  unsigned value_bytes, size_t count, CUstream stream) {
  cudasim::FillRequest request;
  request.destination = to;
  request.value = value;
  request.value_bytes = value_bytes;
  request.width = count * value_bytes;
  return static_cast<CUresult>(
      cudasim::Fill(name, request, reinterpret_cast<uint64_t>(stream)));
}

uint64_t Number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDASIM_ENTER("cuMemcpy");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpy", to, from, bytes, Direction::kDefault, nullptr,
                  true);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                               CUstream stream) {
  CUDASIM_ENTER("cuMemcpyAsync");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyAsync", to, from, bytes, Direction::kDefault, stream,
                  false);
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  CUDASIM_ENTER("cuMemcpyHtoD");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyHtoD", to, Number(from), bytes,
                  Direction::kHostToDevice, nullptr, true);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from,
                                   size_t bytes, CUstream stream) {
  CUDASIM_ENTER("cuMemcpyHtoDAsync");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyHtoDAsync", to, Number(from), bytes,
                  Direction::kHostToDevice, stream, false);
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  CUDASIM_ENTER("cuMemcpyDtoH");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyDtoH", Number(to), from, bytes,
                  Direction::kDeviceToHost, nullptr, true);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes,
                                   CUstream stream) {
  CUDASIM_ENTER("cuMemcpyDtoHAsync");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyDtoHAsync", Number(to), from, bytes,
                  Direction::kDeviceToHost, stream, false);
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDASIM_ENTER("cuMemcpyDtoD");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyDtoD", to, from, bytes, Direction::kDeviceToDevice,
                  nullptr, true);
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from,
                                   size_t bytes, CUstream stream) {
  CUDASIM_ENTER("cuMemcpyDtoDAsync");
  CUDASIM_NEEDS_CONTEXT();
  return CopyFlat("cuMemcpyDtoDAsync", to, from, bytes,
                  Direction::kDeviceToDevice, stream, false);
}

CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D* copy) {
  CUDASIM_ENTER("cuMemcpy2D");
  CUDASIM_NEEDS_CONTEXT();
  return Copy2D("cuMemcpy2D", copy, nullptr, true);
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) {
  CUDASIM_ENTER("cuMemcpy2DAsync");
  CUDASIM_NEEDS_CONTEXT();
  return Copy2D("cuMemcpy2DAsync", copy, stream, false);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  CUDASIM_ENTER("cuMemsetD8");
  CUDASIM_NEEDS_CONTEXT();
  return FillFlat("cuMemsetD8", to, value, 1, count, nullptr);
}

CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value,
                             size_t count) {
  CUDASIM_ENTER("cuMemsetD16");
  CUDASIM_NEEDS_CONTEXT();
  return FillFlat("cuMemsetD16", to, value, 2, count, nullptr);
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  CUDASIM_ENTER("cuMemsetD32");
  CUDASIM_NEEDS_CONTEXT();
  return FillFlat("cuMemsetD32", to, value, 4, count, nullptr);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                 size_t count, CUstream stream) {
  CUDASIM_ENTER("cuMemsetD8Async");
  CUDASIM_NEEDS_CONTEXT();
  return FillFlat("cuMemsetD8Async", to, value, 1, count, stream);
}

CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value,
                                  size_t count, CUstream stream) {
  CUDASIM_ENTER("cuMemsetD16Async");
  CUDASIM_NEEDS_CONTEXT();
  return FillFlat("cuMemsetD16Async", to, value, 2, count, stream);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count,
                                  CUstream stream) {
  CUDASIM_ENTER("cuMemsetD32Async");
  CUDASIM_NEEDS_CONTEXT();
  return FillFlat("cuMemsetD32Async", to, value, 4, count, stream);
}

}  // extern "C"
#pragma GCC visibility pop
