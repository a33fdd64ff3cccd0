// SPDX-License-Identifier: Apache-2.0
//
// The runtime's interprocess memory and events.

#include <cuda_runtime_api.h>

#include "tests/simulator/cudasim/ipc.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::Number;

static_assert(sizeof(cudaIpcMemHandle_t) == cudasim::kIpcHandleBytes);
static_assert(sizeof(cudaIpcEventHandle_t) == cudasim::kIpcHandleBytes);

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle,
                                          void* pointer) {
  CUDASIM_ENTER("cudaIpcGetMemHandle");
  return Answer(cudasim::IpcExportMemory(handle, Number(pointer)));
}

cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void** pointer,
                                           cudaIpcMemHandle_t handle,
                                           unsigned flags) {
  CUDASIM_ENTER("cudaIpcOpenMemHandle");
  if (pointer == nullptr) return Answer(cudasim::kInvalidValue);
  uint64_t address = 0;
  const cudasim::Status status =
      cudasim::IpcOpenMemory(&handle, flags, &address);
  if (status == cudasim::kOk) *pointer = reinterpret_cast<void*>(address);
  return Answer(status);
}

cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void* pointer) {
  CUDASIM_ENTER("cudaIpcCloseMemHandle", kBroken);
  return Answer(
      cudasim::IpcCloseMemory("cudaIpcCloseMemHandle", Number(pointer)));
}

cudaError_t CUDARTAPI cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle,
                                            cudaEvent_t event) {
  CUDASIM_ENTER("cudaIpcGetEventHandle");
  return Answer(cudasim::IpcExportEvent(handle, Number(event)));
}

cudaError_t CUDARTAPI cudaIpcOpenEventHandle(cudaEvent_t* event,
                                             cudaIpcEventHandle_t handle) {
  CUDASIM_ENTER("cudaIpcOpenEventHandle");
  return Answer(
      cudasim::IpcOpenEvent(&handle, reinterpret_cast<uint64_t*>(event)));
}

}  // extern "C"
#pragma GCC visibility pop
