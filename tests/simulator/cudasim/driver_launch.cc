// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions and launches. What has no host twin fails at launch.

#include <cuda.h>

#include <vector>

#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/simulator.h"

namespace {

// The arguments in one buffer, where the kernel's image says their offsets.
bool Unpack(CUfunction function, void** extra, std::vector<void*>* arguments) {
  const auto* const parameters =
      cudasim::Launches::Get().ParametersOf(function);
  char* buffer = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<char*>(extra[1]);
    }
  }
  if (parameters == nullptr || buffer == nullptr) return false;
  for (const cudasim::KernelParameter& each : *parameters) {
    arguments->push_back(buffer + each.offset);
  }
  return true;
}

CUresult Launch(CUfunction function, const unsigned grid[3],
                const unsigned block[3], CUstream stream, void** arguments,
                void** extra) {
  std::vector<void*> unpacked;
  if (extra != nullptr) {
    if (!Unpack(function, extra, &unpacked)) {
      return static_cast<CUresult>(
          cudasim::Unsupported("cuLaunchKernel (arguments packed in `extra`)"));
    }
    arguments = unpacked.data();
  }
  const cudasim::Status status = cudasim::Launches::Get().Launch(
      function, grid, block, arguments, reinterpret_cast<uint64_t>(stream));
  return status == cudasim::kInvalidDeviceFunction
             ? CUDA_ERROR_INVALID_HANDLE
             : static_cast<CUresult>(status);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction function) {
  CUDASIM_ENTER("cuFuncGetName");
  *name = cudasim::Launches::Get().NameOf(function);
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuFuncLoad(CUfunction) {
  CUDASIM_ENTER("cuFuncLoad");
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                    CUfunction function) {
  CUDASIM_ENTER("cuFuncGetAttribute");
  if (cudasim::Launches::Get().NameOf(function) == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const cudasim::Card& card = cudasim::CurrentCard();
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = card.threads_per_block;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 10 * card.compute_major + card.compute_minor;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = card.shared_per_block;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  CUDASIM_ENTER("cuFuncSetAttribute");
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction, CUfunc_cache) {
  CUDASIM_ENTER("cuFuncSetCacheConfig");
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, CUfunction, int block_threads, size_t shared_bytes) {
  CUDASIM_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  *blocks = cudasim::BlocksPerMultiprocessor(cudasim::CurrentCard(),
                                             block_threads, shared_bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x,
                                unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned, CUstream stream,
                                void** arguments, void** extra) {
  CUDASIM_ENTER("cuLaunchKernel");
  CUDASIM_NEEDS_CONTEXT();
  const unsigned grid[3] = {grid_x, grid_y, grid_z};
  const unsigned block[3] = {block_x, block_y, block_z};
  return Launch(function, grid, block, stream, arguments, extra);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config,
                                  CUfunction function, void** arguments,
                                  void** extra) {
  CUDASIM_ENTER("cuLaunchKernelEx");
  CUDASIM_NEEDS_CONTEXT();
  const unsigned grid[3] = {config->gridDimX, config->gridDimY,
                            config->gridDimZ};
  const unsigned block[3] = {config->blockDimX, config->blockDimY,
                             config->blockDimZ};
  return Launch(function, grid, block, config->hStream, arguments, extra);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x,
                                           unsigned grid_y, unsigned grid_z,
                                           unsigned block_x, unsigned block_y,
                                           unsigned block_z, unsigned,
                                           CUstream stream, void** arguments) {
  CUDASIM_ENTER("cuLaunchCooperativeKernel");
  CUDASIM_NEEDS_CONTEXT();
  const unsigned grid[3] = {grid_x, grid_y, grid_z};
  const unsigned block[3] = {block_x, block_y, block_z};
  return Launch(function, grid, block, stream, arguments, nullptr);
}

}  // extern "C"
#pragma GCC visibility pop
