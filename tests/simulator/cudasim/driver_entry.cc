// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/driver_entry.h"

#include <cuda.h>
#include <cudaProfiler.h>

#include <string>
#include <unordered_map>

#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/simulator.h"
#include "tests/simulator/cudasim/unsupported.h"

namespace cudasim {

namespace {

void* FindOwnFunction(const std::string& name) {
// cuda.h renames the function to its newest version, the name stays as it is.
#define CUDASIM_FUNCTION(name) \
  { #name, reinterpret_cast < void*>(&name) }
  static const auto& table = *new std::unordered_map<std::string, void*>{
      CUDASIM_FUNCTION(cuCtxDisablePeerAccess),
      CUDASIM_FUNCTION(cuCtxEnablePeerAccess),
      CUDASIM_FUNCTION(cuCtxGetApiVersion),
      CUDASIM_FUNCTION(cuCtxGetCurrent),
      CUDASIM_FUNCTION(cuCtxGetDevice),
      CUDASIM_FUNCTION(cuCtxGetLimit),
      CUDASIM_FUNCTION(cuCtxGetStreamPriorityRange),
      CUDASIM_FUNCTION(cuCtxPopCurrent),
      CUDASIM_FUNCTION(cuCtxPushCurrent),
      CUDASIM_FUNCTION(cuCtxSetCurrent),
      CUDASIM_FUNCTION(cuCtxSetLimit),
      CUDASIM_FUNCTION(cuCtxSynchronize),
      CUDASIM_FUNCTION(cuDeviceCanAccessPeer),
      CUDASIM_FUNCTION(cuDeviceGet),
      CUDASIM_FUNCTION(cuDeviceGetAttribute),
      CUDASIM_FUNCTION(cuDeviceGetByPCIBusId),
      CUDASIM_FUNCTION(cuDeviceGetCount),
      CUDASIM_FUNCTION(cuDeviceGetDefaultMemPool),
      CUDASIM_FUNCTION(cuDeviceGetMemPool),
      CUDASIM_FUNCTION(cuDeviceGetName),
      CUDASIM_FUNCTION(cuDeviceGetP2PAttribute),
      CUDASIM_FUNCTION(cuDeviceGetPCIBusId),
      CUDASIM_FUNCTION(cuDeviceGetUuid),
      CUDASIM_FUNCTION(cuDevicePrimaryCtxGetState),
      CUDASIM_FUNCTION(cuDevicePrimaryCtxRelease),
      CUDASIM_FUNCTION(cuDevicePrimaryCtxRetain),
      CUDASIM_FUNCTION(cuDeviceSetMemPool),
      CUDASIM_FUNCTION(cuDeviceTotalMem),
      CUDASIM_FUNCTION(cuDriverGetVersion),
      CUDASIM_FUNCTION(cuEventCreate),
      CUDASIM_FUNCTION(cuEventDestroy),
      CUDASIM_FUNCTION(cuEventElapsedTime),
      CUDASIM_FUNCTION(cuEventQuery),
      CUDASIM_FUNCTION(cuEventRecord),
      CUDASIM_FUNCTION(cuEventRecordWithFlags),
      CUDASIM_FUNCTION(cuEventSynchronize),
      CUDASIM_FUNCTION(cuFuncGetAttribute),
      CUDASIM_FUNCTION(cuFuncGetName),
      CUDASIM_FUNCTION(cuFuncLoad),
      CUDASIM_FUNCTION(cuFuncSetAttribute),
      CUDASIM_FUNCTION(cuFuncSetCacheConfig),
      CUDASIM_FUNCTION(cuGetErrorName),
      CUDASIM_FUNCTION(cuGetErrorString),
      CUDASIM_FUNCTION(cuGetExportTable),
      CUDASIM_FUNCTION(cuGetProcAddress),
      CUDASIM_FUNCTION(cuGraphAddChildGraphNode),
      CUDASIM_FUNCTION(cuGraphAddDependencies),
      CUDASIM_FUNCTION(cuGraphAddEmptyNode),
      CUDASIM_FUNCTION(cuGraphAddEventRecordNode),
      CUDASIM_FUNCTION(cuGraphAddEventWaitNode),
      CUDASIM_FUNCTION(cuGraphAddHostNode),
      CUDASIM_FUNCTION(cuGraphClone),
      CUDASIM_FUNCTION(cuGraphCreate),
      CUDASIM_FUNCTION(cuGraphDebugDotPrint),
      CUDASIM_FUNCTION(cuGraphDestroy),
      CUDASIM_FUNCTION(cuGraphDestroyNode),
      CUDASIM_FUNCTION(cuGraphExecDestroy),
      CUDASIM_FUNCTION(cuGraphExecGetFlags),
      CUDASIM_FUNCTION(cuGraphExecUpdate),
      CUDASIM_FUNCTION(cuGraphGetEdges),
      CUDASIM_FUNCTION(cuGraphGetNodes),
      CUDASIM_FUNCTION(cuGraphGetRootNodes),
      CUDASIM_FUNCTION(cuGraphInstantiate),
      CUDASIM_FUNCTION(cuGraphInstantiateWithFlags),
      CUDASIM_FUNCTION(cuGraphInstantiateWithParams),
      CUDASIM_FUNCTION(cuGraphLaunch),
      CUDASIM_FUNCTION(cuGraphNodeGetDependencies),
      CUDASIM_FUNCTION(cuGraphNodeGetDependentNodes),
      CUDASIM_FUNCTION(cuGraphNodeGetType),
      CUDASIM_FUNCTION(cuGraphReleaseUserObject),
      CUDASIM_FUNCTION(cuGraphRemoveDependencies),
      CUDASIM_FUNCTION(cuGraphRetainUserObject),
      CUDASIM_FUNCTION(cuGraphUpload),
      CUDASIM_FUNCTION(cuInit),
      CUDASIM_FUNCTION(cuIpcCloseMemHandle),
      CUDASIM_FUNCTION(cuIpcGetEventHandle),
      CUDASIM_FUNCTION(cuIpcGetMemHandle),
      CUDASIM_FUNCTION(cuIpcOpenEventHandle),
      CUDASIM_FUNCTION(cuIpcOpenMemHandle),
      CUDASIM_FUNCTION(cuKernelGetAttribute),
      CUDASIM_FUNCTION(cuKernelGetFunction),
      CUDASIM_FUNCTION(cuKernelGetName),
      CUDASIM_FUNCTION(cuKernelSetAttribute),
      CUDASIM_FUNCTION(cuKernelSetCacheConfig),
      CUDASIM_FUNCTION(cuLaunchCooperativeKernel),
      CUDASIM_FUNCTION(cuLaunchHostFunc),
      CUDASIM_FUNCTION(cuLaunchKernel),
      CUDASIM_FUNCTION(cuLaunchKernelEx),
      CUDASIM_FUNCTION(cuLibraryGetKernel),
      CUDASIM_FUNCTION(cuLibraryGetModule),
      CUDASIM_FUNCTION(cuLibraryLoadData),
      CUDASIM_FUNCTION(cuLibraryLoadFromFile),
      CUDASIM_FUNCTION(cuLibraryUnload),
      CUDASIM_FUNCTION(cuLogsRegisterCallback),
      CUDASIM_FUNCTION(cuLogsUnregisterCallback),
      CUDASIM_FUNCTION(cuMemAddressFree),
      CUDASIM_FUNCTION(cuMemAddressReserve),
      CUDASIM_FUNCTION(cuMemAlloc),
      CUDASIM_FUNCTION(cuMemAllocAsync),
      CUDASIM_FUNCTION(cuMemAllocFromPoolAsync),
      CUDASIM_FUNCTION(cuMemAllocHost),
      CUDASIM_FUNCTION(cuMemCreate),
      CUDASIM_FUNCTION(cuMemExportToShareableHandle),
      CUDASIM_FUNCTION(cuMemFree),
      CUDASIM_FUNCTION(cuMemFreeAsync),
      CUDASIM_FUNCTION(cuMemFreeHost),
      CUDASIM_FUNCTION(cuMemGetAccess),
      CUDASIM_FUNCTION(cuMemGetAddressRange),
      CUDASIM_FUNCTION(cuMemGetAllocationGranularity),
      CUDASIM_FUNCTION(cuMemGetAllocationPropertiesFromHandle),
      CUDASIM_FUNCTION(cuMemGetInfo),
      CUDASIM_FUNCTION(cuMemHostAlloc),
      CUDASIM_FUNCTION(cuMemHostGetDevicePointer),
      CUDASIM_FUNCTION(cuMemHostRegister),
      CUDASIM_FUNCTION(cuMemHostUnregister),
      CUDASIM_FUNCTION(cuMemImportFromShareableHandle),
      CUDASIM_FUNCTION(cuMemMap),
      CUDASIM_FUNCTION(cuMemPoolCreate),
      CUDASIM_FUNCTION(cuMemPoolDestroy),
      CUDASIM_FUNCTION(cuMemPoolGetAccess),
      CUDASIM_FUNCTION(cuMemPoolGetAttribute),
      CUDASIM_FUNCTION(cuMemPoolSetAccess),
      CUDASIM_FUNCTION(cuMemPoolSetAttribute),
      CUDASIM_FUNCTION(cuMemPoolTrimTo),
      CUDASIM_FUNCTION(cuMemRelease),
      CUDASIM_FUNCTION(cuMemRetainAllocationHandle),
      CUDASIM_FUNCTION(cuMemSetAccess),
      CUDASIM_FUNCTION(cuMemUnmap),
      CUDASIM_FUNCTION(cuMemcpy),
      CUDASIM_FUNCTION(cuMemcpy2D),
      CUDASIM_FUNCTION(cuMemcpy2DAsync),
      CUDASIM_FUNCTION(cuMemcpyAsync),
      CUDASIM_FUNCTION(cuMemcpyDtoD),
      CUDASIM_FUNCTION(cuMemcpyDtoDAsync),
      CUDASIM_FUNCTION(cuMemcpyDtoH),
      CUDASIM_FUNCTION(cuMemcpyDtoHAsync),
      CUDASIM_FUNCTION(cuMemcpyHtoD),
      CUDASIM_FUNCTION(cuMemcpyHtoDAsync),
      CUDASIM_FUNCTION(cuMemcpyPeer),
      CUDASIM_FUNCTION(cuMemcpyPeerAsync),
      CUDASIM_FUNCTION(cuMemsetD16),
      CUDASIM_FUNCTION(cuMemsetD16Async),
      CUDASIM_FUNCTION(cuMemsetD32),
      CUDASIM_FUNCTION(cuMemsetD32Async),
      CUDASIM_FUNCTION(cuMemsetD8),
      CUDASIM_FUNCTION(cuMemsetD8Async),
      CUDASIM_FUNCTION(cuModuleGetFunction),
      CUDASIM_FUNCTION(cuModuleGetGlobal),
      CUDASIM_FUNCTION(cuModuleGetLoadingMode),
      CUDASIM_FUNCTION(cuModuleLoad),
      CUDASIM_FUNCTION(cuModuleLoadData),
      CUDASIM_FUNCTION(cuModuleLoadDataEx),
      CUDASIM_FUNCTION(cuModuleLoadFatBinary),
      CUDASIM_FUNCTION(cuModuleUnload),
      CUDASIM_FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor),
      CUDASIM_FUNCTION(cuPointerGetAttribute),
      CUDASIM_FUNCTION(cuPointerGetAttributes),
      CUDASIM_FUNCTION(cuProfilerStart),
      CUDASIM_FUNCTION(cuProfilerStop),
      CUDASIM_FUNCTION(cuStreamBeginCapture),
      CUDASIM_FUNCTION(cuStreamBeginCaptureToGraph),
      CUDASIM_FUNCTION(cuStreamCreate),
      CUDASIM_FUNCTION(cuStreamCreateWithPriority),
      CUDASIM_FUNCTION(cuStreamDestroy),
      CUDASIM_FUNCTION(cuStreamEndCapture),
      CUDASIM_FUNCTION(cuStreamGetCaptureInfo),
      CUDASIM_FUNCTION(cuStreamGetFlags),
      CUDASIM_FUNCTION(cuStreamGetId),
      CUDASIM_FUNCTION(cuStreamGetPriority),
      CUDASIM_FUNCTION(cuStreamIsCapturing),
      CUDASIM_FUNCTION(cuStreamQuery),
      CUDASIM_FUNCTION(cuStreamSynchronize),
      CUDASIM_FUNCTION(cuStreamUpdateCaptureDependencies),
      CUDASIM_FUNCTION(cuStreamWaitEvent),
      CUDASIM_FUNCTION(cuThreadExchangeStreamCaptureMode),
      CUDASIM_FUNCTION(cuUserObjectCreate),
      CUDASIM_FUNCTION(cuUserObjectRelease),
      CUDASIM_FUNCTION(cuUserObjectRetain),
  };
#undef CUDASIM_FUNCTION
  auto found = table.find(name);
  return found != table.end() ? found->second : nullptr;
}

}  // namespace

void* FindDriverFunction(const char* name) {
  void* const found = FindOwnFunction(name);
  return found != nullptr ? found : FindUnsupportedDriverFunction(name);
}

bool HasDriverFunction(const char* name) {
  return FindOwnFunction(name) != nullptr;
}

unsigned IntroducedIn(const std::string& name) {
  static const auto& late = *new std::unordered_map<std::string, unsigned>{
      {"cuMemAddressFree", 10020},
      {"cuMemAddressReserve", 10020},
      {"cuMemCreate", 10020},
      {"cuMemExportToShareableHandle", 10020},
      {"cuMemGetAccess", 10020},
      {"cuMemGetAllocationGranularity", 10020},
      {"cuMemGetAllocationPropertiesFromHandle", 10020},
      {"cuMemImportFromShareableHandle", 10020},
      {"cuMemMap", 10020},
      {"cuMemRelease", 10020},
      {"cuMemSetAccess", 10020},
      {"cuMemUnmap", 10020},
      {"cuMemRetainAllocationHandle", 11000},
      {"cuMemAllocAsync", 11020},
      {"cuMemFreeAsync", 11020},
      {"cuGetProcAddress", 11030},
      {"cuLaunchKernelEx", 11060},
      {"cuStreamGetId", 12000},
      {"cuMulticastCreate", 12010},
      {"cuGreenCtxCreate", 12040},
      {"cuCtxFromGreenCtx", 12040},
      {"cuDevSmResourceSplit", 13010},
      {"cuGraphExecGetId", 13010},
      {"cuGraphGetId", 13010},
      {"cuGraphNodeGetContainingGraph", 13010},
      {"cuGraphNodeGetLocalId", 13010},
      {"cuGraphNodeGetToolsId", 13010},
      {"cuStreamBeginCaptureToCig", 13010},
      {"cuStreamEndCaptureToCig", 13010},
      {"cuStreamGetDevResource", 13010},
      {"cuCoredumpDeregisterCompleteCallback", 13020},
      {"cuCoredumpDeregisterStartCallback", 13020},
      {"cuCoredumpRegisterCompleteCallback", 13020},
      {"cuCoredumpRegisterStartCallback", 13020},
      {"cuFuncGetParamCount", 13020},
      {"cuGraphNodeGetParams", 13020},
      {"cuKernelGetParamCount", 13020},
      {"cuMemcpy3DWithAttributesAsync", 13020},
      {"cuMemcpyWithAttributesAsync", 13020},
  };
  auto found = late.find(name);
  return found == late.end() ? 0 : found->second;
}

}  // namespace cudasim

#pragma GCC visibility push(default)
extern "C" CUresult CUDAAPI
cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t,
                 CUdriverProcAddressQueryResult* status) {
  CUDASIM_ENTER("cuGetProcAddress", cudasim::Entry::kBeforeInit);
  if (symbol == nullptr || function == nullptr ||
      version > cudasim::kDriverVersion) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *function = cudasim::FindDriverFunction(symbol);
  auto found = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (version < static_cast<int>(cudasim::IntroducedIn(symbol))) {
    *function = nullptr;
    found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  }
  if (status != nullptr) *status = found;
  // An unknown name is an answer, not an error.
  return CUDA_SUCCESS;
}
#pragma GCC visibility pop
