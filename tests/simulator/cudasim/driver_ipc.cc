// SPDX-License-Identifier: Apache-2.0
//
// The driver's interprocess memory and events, and handles as descriptors.

#include <cuda.h>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/ipc.h"

using cudasim::driver::Answer;

static_assert(sizeof(CUipcMemHandle) == cudasim::kIpcHandleBytes);
static_assert(sizeof(CUipcEventHandle) == cudasim::kIpcHandleBytes);

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle,
                                   CUdeviceptr pointer) {
  CUDASIM_ENTER("cuIpcGetMemHandle");
  CUDASIM_NEEDS_CONTEXT();
  return Answer(cudasim::IpcExportMemory(handle, pointer));
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle,
                                    unsigned flags) {
  CUDASIM_ENTER("cuIpcOpenMemHandle");
  CUDASIM_NEEDS_CONTEXT();
  uint64_t address = 0;
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudasim::Status status =
      cudasim::IpcOpenMemory(&handle, flags, &address);
  if (status == cudasim::kOk) *pointer = address;
  return Answer(status);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr pointer) {
  CUDASIM_ENTER("cuIpcCloseMemHandle", cudasim::Entry::kAllowedWhenBroken);
  return Answer(cudasim::IpcCloseMemory("cuIpcCloseMemHandle", pointer));
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  CUDASIM_ENTER("cuIpcGetEventHandle");
  CUDASIM_NEEDS_CONTEXT();
  return Answer(
      cudasim::IpcExportEvent(handle, reinterpret_cast<uint64_t>(event)));
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  CUDASIM_ENTER("cuIpcOpenEventHandle");
  CUDASIM_NEEDS_CONTEXT();
  return Answer(
      cudasim::IpcOpenEvent(&handle, reinterpret_cast<uint64_t*>(event)));
}

CUresult CUDAAPI cuMemExportToShareableHandle(
    void* out, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type, unsigned long long flags) {
  CUDASIM_ENTER("cuMemExportToShareableHandle");
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Answer(cudasim::ExportDescriptor(handle, static_cast<int*>(out)));
}

CUresult CUDAAPI
cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                               CUmemAllocationHandleType type) {
  CUDASIM_ENTER("cuMemImportFromShareableHandle");
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t imported = 0;
  const cudasim::Status status = cudasim::ImportDescriptor(
      static_cast<int>(reinterpret_cast<intptr_t>(from)), &imported);
  if (status == cudasim::kOk) *handle = imported;
  return Answer(status);
}

}  // extern "C"
#pragma GCC visibility pop
