// SPDX-License-Identifier: Apache-2.0
//
// The driver's devices, contexts and questions. There is one context per
// device, the primary one; contexts of one's own are not supported.

#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/simulator/cudasim/contexts.h"
#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/error_text.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/limits.h"
#include "tests/simulator/cudasim/memory.h"
#include "tests/simulator/cudasim/ordering.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

CUcontext ContextOf(int device) {
  return reinterpret_cast<CUcontext>(ContextNumber(device));
}

// -1 for anything that is no context of ours.
int DeviceOf(CUcontext context) {
  return DeviceOfContext(reinterpret_cast<uint64_t>(context),
                         Simulator::Get().config.devices);
}

std::vector<CUcontext>& Stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

CUcontext Current() {
  return ThisThread().no_context ? nullptr : ContextOf(ThisThread().device);
}

CUresult SetCurrent(CUcontext context) {
  if (context == nullptr) {
    // The runtime is back at the device that cudaSetDevice chose.
    ThisThread().device = ThisThread().selected;
    ThisThread().no_context = true;
    return CUDA_SUCCESS;
  }
  const int device = DeviceOf(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  ThisThread().device = device;
  ThisThread().no_context = false;
  return CUDA_SUCCESS;
}

CUresult PointerAttribute(const PointerInfo& info,
                          CUpointer_attribute attribute, CUdeviceptr pointer,
                          void* data) {
  const bool device = info.kind == PointerKind::kDevice;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = ContextOf(info.device);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) =
          device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!info.host_readable) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = reinterpret_cast<void*>(pointer);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      std::memset(data, 0, sizeof(int));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = info.ipc_capable ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<uint64_t*>(data) = info.handle_types;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<int*>(data) = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = info.device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = info.start;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = info.bytes;
      return CUDA_SUCCESS;
    default:
      return static_cast<CUresult>(
          Unsupported("cuPointerGetAttribute (this attribute)"));
  }
}

}  // namespace
}  // namespace cudasim

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuInit(unsigned flags) {
  CUDASIM_ENTER("cuInit", cudasim::Entry::kBeforeInit);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (cudasim::Simulator::Get().config.devices == 0) {
    return CUDA_ERROR_NO_DEVICE;
  }
  cudasim::InitializeDriver();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  CUDASIM_ENTER("cuDriverGetVersion", cudasim::Entry::kBeforeInit);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = cudasim::kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = cudasim::Launches::Get().ErrorSentence(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = cudasim::DriverErrorName(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  CUDASIM_ENTER("cuDeviceGetCount", cudasim::Entry::kQuestion);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = cudasim::Simulator::Get().config.devices;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  CUDASIM_ENTER("cuDeviceGet", cudasim::Entry::kQuestion);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!cudasim::IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int bytes, CUdevice device) {
  CUDASIM_ENTER("cuDeviceGetName", cudasim::Entry::kQuestion);
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, bytes, "%s", cudasim::CardOf(device).name.c_str());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  CUDASIM_ENTER("cuDeviceGetUuid", cudasim::Entry::kQuestion);
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  cudasim::DeviceUuid(device, uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  CUDASIM_ENTER("cuDeviceTotalMem", cudasim::Entry::kQuestion);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  cudasim::Simulator& sim = cudasim::Simulator::Get();
  cudasim::Lock lock(sim.mu);
  *bytes = sim.extents.memory(device).capacity;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                      CUdevice device) {
  CUDASIM_ENTER("cuDeviceGetAttribute", cudasim::Entry::kQuestion);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return cudasim::DeviceAttribute(cudasim::CardOf(device), attribute, device,
                                  value)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags,
                                            int* active) {
  CUDASIM_ENTER("cuDevicePrimaryCtxGetState", cudasim::Entry::kQuestion);
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = 0;
  *active = cudasim::IsPrimaryContextActive(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CUDASIM_ENTER("cuDevicePrimaryCtxRetain");
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (const cudasim::Status opened = cudasim::Simulator::Get().OpenContext(
          device, cudasim::RetainPrimaryContext);
      opened != cudasim::kOk) {
    return CUDASIM_ANSWER(opened);
  }
  *context = cudasim::ContextOf(device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  CUDASIM_ENTER("cuDevicePrimaryCtxRelease",
                cudasim::Entry::kAllowedWhenBroken);
  if (!cudasim::IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!cudasim::ReleasePrimaryContext(device)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  cudasim::Simulator& sim = cudasim::Simulator::Get();
  cudasim::Lock lock(sim.mu);
  sim.ChargeContext(device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  CUDASIM_ENTER("cuCtxGetCurrent", cudasim::Entry::kQuestion);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = cudasim::Current();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  CUDASIM_ENTER("cuCtxSetCurrent", cudasim::Entry::kAllowedWhenBroken);
  return cudasim::SetCurrent(context);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  CUDASIM_ENTER("cuCtxPushCurrent", cudasim::Entry::kAllowedWhenBroken);
  const CUcontext outer = cudasim::Current();
  const CUresult result = cudasim::SetCurrent(context);
  if (result == CUDA_SUCCESS) cudasim::Stack().push_back(outer);
  return result;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  CUDASIM_ENTER("cuCtxPopCurrent", cudasim::Entry::kAllowedWhenBroken);
  if (cudasim::Stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = cudasim::Current();
  const CUcontext outer = cudasim::Stack().back();
  cudasim::Stack().pop_back();
  return cudasim::SetCurrent(outer);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  CUDASIM_ENTER("cuCtxGetDevice", cudasim::Entry::kQuestion);
  if (cudasim::ThisThread().no_context) return CUDA_ERROR_INVALID_CONTEXT;
  *device = cudasim::ThisThread().device;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext, unsigned* version) {
  CUDASIM_ENTER("cuCtxGetApiVersion", cudasim::Entry::kQuestion);
  *version = cudasim::kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit limit) {
  CUDASIM_ENTER("cuCtxGetLimit");
  return static_cast<CUresult>(cudasim::GetLimit(limit, value));
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  CUDASIM_ENTER("cuCtxSetLimit");
  return static_cast<CUresult>(cudasim::SetLimit(limit, value));
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CUDASIM_ENTER("cuCtxGetStreamPriorityRange", cudasim::Entry::kQuestion);
  if (least != nullptr) *least = cudasim::kLowestPriority;
  if (greatest != nullptr) *greatest = cudasim::kHighestPriority;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  CUDASIM_ENTER("cuCtxSynchronize");
  CUDASIM_NEEDS_CONTEXT();
  return static_cast<CUresult>(cudasim::DeviceSynchronize());
}

CUresult CUDAAPI cuPointerGetAttribute(void* data,
                                       CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  CUDASIM_ENTER("cuPointerGetAttribute");
  const cudasim::PointerInfo info = cudasim::DescribePointer(pointer);
  if (data == nullptr || info.kind == cudasim::PointerKind::kUnknown) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return cudasim::PointerAttribute(info, attribute, pointer, data);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count,
                                        CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr pointer) {
  CUDASIM_ENTER("cuPointerGetAttributes");
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudasim::PointerInfo info = cudasim::DescribePointer(pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // Of a pointer CUDA does not know, each is null; that is no error here.
    if (info.kind == cudasim::PointerKind::kUnknown) {
      const bool wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
      std::memset(data[i], 0, wide ? sizeof(uint64_t) : sizeof(int));
      continue;
    }
    const CUresult result =
        cudasim::PointerAttribute(info, attributes[i], pointer, data[i]);
    // A host address that the device alone can use is none: null.
    if (result == CUDA_ERROR_INVALID_VALUE &&
        attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
      std::memset(data[i], 0, sizeof(void*));
    } else if (result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
