// SPDX-License-Identifier: Apache-2.0
// The table of CUDA entry points the product calls, and the only place that
// finds them. They are looked up with dlsym in what the process has already
// loaded (torch's runtime, the real driver, or the simulated device), so the
// product links no CUDA library and never starts a second runtime.
//
// Only allocator/cuda/ and tiering/gpu/ include this header; other rooms use
// device.h. Lifetime: resolved once, never unloaded. Thread-safe.
#ifndef STRATALLOC_ALLOCATOR_CUDA_CUDA_API_H_
#define STRATALLOC_ALLOCATOR_CUDA_CUDA_API_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "allocator/base/result.h"

namespace stratalloc {

// X(name): a runtime function; Y(name): a driver function.
#define STRATALLOC_RUNTIME_FUNCTIONS(X)  \
  X(cudaMemGetInfo)                      \
  X(cudaMalloc)                          \
  X(cudaFree)                            \
  X(cudaMemcpyAsync)                     \
  X(cudaMemcpyPeerAsync)                 \
  X(cudaMemsetAsync)                     \
  X(cudaStreamCreateWithFlags)           \
  X(cudaStreamDestroy)                   \
  X(cudaStreamSynchronize)               \
  X(cudaStreamQuery)                     \
  X(cudaStreamWaitEvent)                 \
  X(cudaStreamIsCapturing)               \
  X(cudaThreadExchangeStreamCaptureMode) \
  X(cudaEventCreateWithFlags)            \
  X(cudaEventDestroy)                    \
  X(cudaEventRecord)                     \
  X(cudaEventQuery)                      \
  X(cudaEventSynchronize)                \
  X(cudaDeviceSynchronize)               \
  X(cudaDeviceEnablePeerAccess)          \
  X(cudaDeviceGetPCIBusId)               \
  X(cudaHostRegister)                    \
  X(cudaHostUnregister)                  \
  X(cudaIpcGetMemHandle)                 \
  X(cudaIpcOpenMemHandle)                \
  X(cudaIpcCloseMemHandle)               \
  X(cudaGetLastError)                    \
  X(cudaPeekAtLastError)                 \
  X(cudaGetErrorName)                    \
  X(cudaGetErrorString)

#define STRATALLOC_DRIVER_FUNCTIONS(X) \
  X(cuDeviceGet)                       \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceTotalMem)                  \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuCtxGetDevice)                    \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuMemAddressReserve)               \
  X(cuMemAddressFree)                  \
  X(cuMemCreate)                       \
  X(cuMemRelease)                      \
  X(cuMemMap)                          \
  X(cuMemUnmap)                        \
  X(cuMemSetAccess)                    \
  X(cuMemExportToShareableHandle)      \
  X(cuMemImportFromShareableHandle)    \
  X(cuMemGetAllocationGranularity)     \
  X(cuModuleLoadData)                  \
  X(cuModuleGetFunction)               \
  X(cuModuleGetGlobal)                 \
  X(cuLaunchKernel)                    \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)

struct CudaApi {
#define STRATALLOC_MEMBER(name) decltype(&::name) name = nullptr;
  STRATALLOC_RUNTIME_FUNCTIONS(STRATALLOC_MEMBER)
  STRATALLOC_DRIVER_FUNCTIONS(STRATALLOC_MEMBER)
#undef STRATALLOC_MEMBER

  // The process's table. kUnsupported, naming the first missing function, if
  // no CUDA runtime and driver are loaded; a failure is not cached, so a later
  // call may succeed once torch has loaded them.
  static Result<const CudaApi*> Get();
};

// "cudaMemcpyAsync failed: cudaErrorInvalidValue (invalid argument)".
Error CudaError(const CudaApi& api, const char* function, cudaError_t error);
Error DriverError(const CudaApi& api, const char* function, CUresult error);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_CUDA_API_H_
