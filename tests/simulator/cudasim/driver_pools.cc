// SPDX-License-Identifier: Apache-2.0
//
// The driver's stream-ordered memory, and its pools: pool_calls.inc in its
// words.

#include <cuda.h>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/pools.h"

using cudasim::kBroken;
using cudasim::kQuestion;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Pool;
using cudasim::Simulator;
using cudasim::driver::Answer;

namespace {

using Result = CUresult;
using MemPool = CUmemoryPool;
using MemPoolProps = CUmemPoolProps;
using MemPoolAttribute = CUmemPool_attribute;
using MemAccess = CUmemAccessDesc;
using MemAccessFlags = CUmemAccess_flags;
using MemLocation = CUmemLocation;

constexpr auto kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
constexpr auto kOnDevice = CU_MEM_LOCATION_TYPE_DEVICE;
constexpr auto kNotShared = CU_MEM_HANDLE_TYPE_NONE;

}  // namespace

#include "tests/simulator/cudasim/pool_calls.inc"

namespace {

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

}  // extern "C"
#pragma GCC visibility pop
