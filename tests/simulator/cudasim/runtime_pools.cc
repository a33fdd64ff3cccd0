// SPDX-License-Identifier: Apache-2.0
//
// The runtime's stream-ordered memory, and its pools: pool_calls.inc in its
// words.

#include <cuda_runtime_api.h>

#include "tests/simulator/cudasim/pools.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::kQuestion;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Pool;
using cudasim::Simulator;

namespace {

using Result = cudaError_t;
using MemPool = cudaMemPool_t;
using MemPoolProps = cudaMemPoolProps;
using MemPoolAttribute = cudaMemPoolAttr;
using MemAccess = cudaMemAccessDesc;
using MemAccessFlags = cudaMemAccessFlags;
using MemLocation = cudaMemLocation;

constexpr auto kPinned = cudaMemAllocationTypePinned;
constexpr auto kOnDevice = cudaMemLocationTypeDevice;
constexpr auto kNotShared = cudaMemHandleTypeNone;

}  // namespace

#include "tests/simulator/cudasim/pool_calls.inc"

namespace {

cudaError_t Allocate(const char* name, void** pointer, size_t bytes,
                     uint64_t pool, cudaStream_t stream) {
  if (pointer == nullptr) return Answer(cudasim::kInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  uint64_t address = 0;
  const cudasim::Status status =
      cudasim::AllocateAsync(name, bytes, pool, Number(stream), &address);
  if (status == cudasim::kOk) *pointer = reinterpret_cast<void*>(address);
  return Answer(status);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaMallocAsync(void** pointer, size_t bytes,
                                      cudaStream_t stream) {
  CUDASIM_ENTER("cudaMallocAsync");
  return Allocate("cudaMallocAsync", pointer, bytes, 0, stream);
}

cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** pointer, size_t bytes,
                                              cudaMemPool_t pool,
                                              cudaStream_t stream) {
  CUDASIM_ENTER("cudaMallocFromPoolAsync");
  if (pool == nullptr) return Answer(cudasim::kInvalidValue);
  return Allocate("cudaMallocFromPoolAsync", pointer, bytes, Number(pool),
                  stream);
}

cudaError_t CUDARTAPI cudaFreeAsync(void* pointer, cudaStream_t stream) {
  CUDASIM_ENTER("cudaFreeAsync", kBroken);
  return Answer(
      cudasim::FreeAsync("cudaFreeAsync", Number(pointer), Number(stream)));
}

}  // extern "C"
#pragma GCC visibility pop
