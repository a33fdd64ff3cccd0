// SPDX-License-Identifier: Apache-2.0
//
// The runtime's kernels: registration by the code nvcc generates, attributes,
// launches.

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::Launches;
using cudasim::Number;

namespace {

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  void* stream;
};

std::vector<CallConfiguration>& Configurations() {
  thread_local std::vector<CallConfiguration> stack;
  return stack;
}

cudaError_t Launch(const void* function, dim3 grid, dim3 block,
                   void** arguments, cudaStream_t stream) {
  const unsigned grid_size[3] = {grid.x, grid.y, grid.z};
  const unsigned block_size[3] = {block.x, block.y, block.z};
  return Answer(Launches::Get().Launch(function, grid_size, block_size,
                                       arguments, Number(stream)));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void** CUDARTAPI __cudaRegisterFatBinary(void*) {
  // A token per binary; its code is never looked at.
  return new void*(nullptr);
}

void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}

void CUDARTAPI __cudaUnregisterFatBinary(void** binary) { delete binary; }

char CUDARTAPI __cudaInitModule(void**) { return 1; }

void CUDARTAPI __cudaRegisterFunction(void**, const char* function, char*,
                                      const char* name, int, uint3*, uint3*,
                                      dim3*, dim3*, int*) {
  Launches::Get().RegisterFunction(function, name);
}

cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* kernel,
                                      const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                               size_t shared_bytes,
                                               void* stream) {
  Configurations().push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                 size_t* shared_bytes,
                                                 void* stream) {
  if (Configurations().empty()) return Answer(cudasim::kInvalidValue);
  const CallConfiguration top = Configurations().back();
  Configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<void**>(stream) = top.stream;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchKernel(const void* function, dim3 grid,
                                       dim3 block, void** arguments, size_t,
                                       cudaStream_t stream) {
  CUDASIM_ENTER("cudaLaunchKernel");
  return Launch(function, grid, block, arguments, stream);
}

cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid,
                                         dim3 block, void** arguments, size_t,
                                         cudaStream_t stream) {
  CUDASIM_ENTER("cudaLaunchKernel");
  return Launch(kernel, grid, block, arguments, stream);
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                          const void* function,
                                          void** arguments) {
  CUDASIM_ENTER("cudaLaunchKernelExC");
  return Launch(function, config->gridDim, config->blockDim, arguments,
                config->stream);
}

cudaError_t CUDARTAPI cudaLaunchCooperativeKernel(const void* function,
                                                  dim3 grid, dim3 block,
                                                  void** arguments, size_t,
                                                  cudaStream_t stream) {
  CUDASIM_ENTER("cudaLaunchCooperativeKernel");
  return Launch(function, grid, block, arguments, stream);
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                            const void* function) {
  CUDASIM_ENTER("cudaFuncGetAttributes");
  if (Launches::Get().NameOf(function) == nullptr) {
    return Answer(cudasim::kInvalidDeviceFunction);
  }
  const cudasim::Card& card = cudasim::CurrentCard();
  std::memset(attributes, 0, sizeof(*attributes));
  attributes->maxThreadsPerBlock = card.threads_per_block;
  attributes->numRegs = 32;
  // CUB picks its tuning by these and refuses zero.
  attributes->ptxVersion = 10 * card.compute_major + card.compute_minor;
  attributes->binaryVersion = attributes->ptxVersion;
  attributes->maxDynamicSharedSizeBytes = card.shared_per_block;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* function,
                                           cudaFuncAttribute, int) {
  CUDASIM_ENTER("cudaFuncSetAttribute");
  return Launches::Get().NameOf(function) != nullptr
             ? cudaSuccess
             : Answer(cudasim::kInvalidDeviceFunction);
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, const void*, int block_threads, size_t shared_bytes) {
  CUDASIM_ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  *blocks = cudasim::BlocksPerMultiprocessor(cudasim::CurrentCard(),
                                             block_threads, shared_bytes);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int block_threads, size_t shared_bytes,
    unsigned) {
  CUDASIM_ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
  *blocks = cudasim::BlocksPerMultiprocessor(cudasim::CurrentCard(),
                                             block_threads, shared_bytes);
  return cudaSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
