// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/uncached.h"

#include "allocator/cuda/cuda_api.h"

namespace stratalloc {
namespace {

// Runs `call(api)`, without leaving its error behind.
template <typename Call>
int Run(Call&& call) {
  const Result<const CudaApi*> api = CudaApi::Get();
  if (!api) return cudaErrorInsufficientDriver;
  const cudaError_t error = call(**api);
  if (error != cudaSuccess) (*api)->cudaGetLastError();
  return error;
}

}  // namespace

int UncachedMalloc(Bytes bytes, void** out) {
  return Run([&](const CudaApi& api) { return api.cudaMalloc(out, bytes); });
}

int UncachedFree(void* address) {
  return Run([&](const CudaApi& api) { return api.cudaFree(address); });
}

int UncachedCopy(void* to, const void* from, Bytes bytes) {
  return Run([&](const CudaApi& api) {
    const cudaError_t error =
        api.cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr);
    return error != cudaSuccess ? error : api.cudaStreamSynchronize(nullptr);
  });
}

}  // namespace stratalloc
