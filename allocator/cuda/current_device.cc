// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/current_device.h"

#include <atomic>

namespace stratalloc {

CUcontext PrimaryContext(const CudaApi& api, DeviceIndex index,
                         CUresult* error) {
  static std::atomic<CUcontext> contexts[kMaxDevices];
  std::atomic<CUcontext>& known = contexts[static_cast<int>(index)];
  CUcontext context = known.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  CUdevice device = 0;
  *error = api.cuDeviceGet(&device, static_cast<int>(index));
  if (*error != CUDA_SUCCESS) return nullptr;
  *error = api.cuDevicePrimaryCtxRetain(&context, device);
  if (*error != CUDA_SUCCESS) return nullptr;
  // Two threads may both retain it: it is the same one, and stays.
  known.store(context, std::memory_order_release);
  return context;
}

void CurrentDevice::Push(DeviceIndex index) {
  failed_ = "cuDevicePrimaryCtxRetain";
  const CUcontext context = PrimaryContext(api_, index, &error_);
  if (context == nullptr) return;
  failed_ = "cuCtxPushCurrent";
  error_ = api_.cuCtxPushCurrent(context);
  pushed_ = error_ == CUDA_SUCCESS;
}

}  // namespace stratalloc
