// SPDX-License-Identifier: Apache-2.0
//
// What answers before anything was initialised, and contexts: who makes them,
// who needs one. Each case is a process of its own.

#include <thread>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {

// Before cuInit every driver function but a few refuses; the runtime needs no
// such call.
CASE_IN_OWN_PROCESS(contexts, driver_before_init) {
  int version = 0;
  Documented("version", CUDA_SUCCESS, api.cuDriverGetVersion(&version));
  const char* text = nullptr;
  Documented("error_text", CUDA_SUCCESS,
             api.cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
  int count = 0;
  Documented("count", CUDA_ERROR_NOT_INITIALIZED, api.cuDeviceGetCount(&count));
  CUdevice device = 0;
  Documented("device", CUDA_ERROR_NOT_INITIALIZED, api.cuDeviceGet(&device, 0));
  Believed("not_initialized_wins_over_bad_ordinal", CUDA_ERROR_NOT_INITIALIZED,
           api.cuDeviceGet(&device, -1));
  CUcontext context = nullptr;
  Documented("current_context", CUDA_ERROR_NOT_INITIALIZED,
             api.cuCtxGetCurrent(&context));
  CUdeviceptr pointer = 0;
  Documented("alloc", CUDA_ERROR_NOT_INITIALIZED, api.cuMemAlloc(&pointer, 64));
  Documented("reserve", CUDA_ERROR_NOT_INITIALIZED,
             api.cuMemAddressReserve(&pointer, 2 << 20, 0, 0, 0));
  Documented("init_with_flags", CUDA_ERROR_INVALID_VALUE, api.cuInit(1));
  Documented("init", CUDA_SUCCESS, api.cuInit(0));
  Documented("init_twice", CUDA_SUCCESS, api.cuInit(0));
  Documented("count_after", CUDA_SUCCESS, api.cuDeviceGetCount(&count));
  Documented("device_after", CUDA_SUCCESS, api.cuDeviceGet(&device, 0));
}

// cuInit makes no context; what needs one says so.
CASE_IN_OWN_PROCESS(contexts, driver_without_context) {
  Documented("init", CUDA_SUCCESS, api.cuInit(0));
  CUcontext context = reinterpret_cast<CUcontext>(8);
  Documented("current", CUDA_SUCCESS, api.cuCtxGetCurrent(&context));
  Holds("current_is_null", context == nullptr);
  CUdevice device = 0;
  Documented("device_of_context", CUDA_ERROR_INVALID_CONTEXT,
             api.cuCtxGetDevice(&device));
  CUdeviceptr pointer = 0;
  Documented("alloc", CUDA_ERROR_INVALID_CONTEXT, api.cuMemAlloc(&pointer, 64));
  Documented("synchronize", CUDA_ERROR_INVALID_CONTEXT, api.cuCtxSynchronize());
  size_t free = 0;
  size_t total = 0;
  Documented("memory_info", CUDA_ERROR_INVALID_CONTEXT,
             api.cuMemGetInfo(&free, &total));
  CUstream stream = nullptr;
  Documented("stream", CUDA_ERROR_INVALID_CONTEXT,
             api.cuStreamCreate(&stream, 0));
  CUevent event = nullptr;
  Documented("event", CUDA_ERROR_INVALID_CONTEXT, api.cuEventCreate(&event, 0));
  CUcontext popped = nullptr;
  Documented("pop", CUDA_ERROR_INVALID_CONTEXT, api.cuCtxPopCurrent(&popped));
  unsigned flags = 99;
  int active = 99;
  Documented("state", CUDA_SUCCESS,
             api.cuDevicePrimaryCtxGetState(0, &flags, &active));
  Documented("not_active", 0, active);
  // Handles and address ranges belong to no context.
  Believed("reserve_needs_none", CUDA_SUCCESS,
           api.cuMemAddressReserve(&pointer, 2 << 20, 0, 0, 0));
  if (pointer != 0) {
    Believed("free_range_needs_none", CUDA_SUCCESS,
             api.cuMemAddressFree(pointer, 2 << 20));
  }
}

CASE_IN_OWN_PROCESS(contexts, primary_context) {
  (void)api.cuInit(0);
  CUcontext context = nullptr;
  Documented("release_without_retain", CUDA_ERROR_INVALID_CONTEXT,
             api.cuDevicePrimaryCtxRelease(0));
  Documented("retain", CUDA_SUCCESS, api.cuDevicePrimaryCtxRetain(&context, 0));
  Holds("is_one", context != nullptr);
  unsigned flags = 0;
  int active = 0;
  (void)api.cuDevicePrimaryCtxGetState(0, &flags, &active);
  Documented("active", 1, active);
  CUcontext current = nullptr;
  (void)api.cuCtxGetCurrent(&current);
  Holds("retaining_makes_none_current", current == nullptr);
  CUcontext same = nullptr;
  (void)api.cuDevicePrimaryCtxRetain(&same, 0);
  Holds("same_one", same == context);
  Documented("push", CUDA_SUCCESS, api.cuCtxPushCurrent(context));
  (void)api.cuCtxGetCurrent(&current);
  Holds("pushed_is_current", current == context);
  CUdevice device = -1;
  Documented("device", CUDA_SUCCESS, api.cuCtxGetDevice(&device));
  Documented("device_is_0", 0, device);
  Documented("pop", CUDA_SUCCESS, api.cuCtxPopCurrent(&current));
  Holds("popped_it", current == context);
  (void)api.cuCtxGetCurrent(&current);
  Holds("none_left", current == nullptr);
  Documented("set", CUDA_SUCCESS, api.cuCtxSetCurrent(context));
  Documented("set_none", CUDA_SUCCESS, api.cuCtxSetCurrent(nullptr));
  Documented("release", CUDA_SUCCESS, api.cuDevicePrimaryCtxRelease(0));
  Documented("release_again", CUDA_SUCCESS, api.cuDevicePrimaryCtxRelease(0));
  (void)api.cuDevicePrimaryCtxGetState(0, &flags, &active);
  Documented("not_active_any_more", 0, active);
}

// Since 12.0 cudaSetDevice initialises the runtime and makes the primary
// context current; before, the first call that needs it.
CASE_IN_OWN_PROCESS(contexts, runtime_makes_the_context) {
  (void)api.cuInit(0);
  CUcontext context = nullptr;
  Documented("set_device", cudaSuccess, api.cudaSetDevice(0));
  (void)api.cuCtxGetCurrent(&context);
  Holds("is_current", context != nullptr);
  unsigned flags = 0;
  int active = 0;
  (void)api.cuDevicePrimaryCtxGetState(0, &flags, &active);
  Documented("active", 1, active);
  CUcontext primary = nullptr;
  (void)api.cuDevicePrimaryCtxRetain(&primary, 0);
  Holds("is_the_primary", primary == context);
  (void)api.cuDevicePrimaryCtxRelease(0);
  CUcontext other = reinterpret_cast<CUcontext>(8);
  CUcontext after = nullptr;
  std::thread thread([&] {
    (void)api.cuCtxGetCurrent(&other);
    (void)api.cudaFree(nullptr);
    (void)api.cuCtxGetCurrent(&after);
  });
  thread.join();
  Holds("a_new_thread_has_none", other == nullptr);
  Holds("until_the_runtime_is_used", after == context);
}

// Who borrows another device's context gives the thread back as it was, and
// makes no context on the device that the thread had chosen; who sets the
// device and sets it back makes one.
CASE_IN_OWN_PROCESS(contexts, borrowed_context) {
  int devices = 0;
  (void)api.cuInit(0);
  (void)api.cuDeviceGetCount(&devices);
  const int last = devices - 1;
  CUcontext context = nullptr;
  (void)api.cuDevicePrimaryCtxRetain(&context, last);
  Documented("push", CUDA_SUCCESS, api.cuCtxPushCurrent(context));
  int device = -1;
  (void)api.cudaGetDevice(&device);
  Holds("the_runtime_follows", device == last);
  void* pointer = nullptr;
  Documented("malloc", cudaSuccess, api.cudaMalloc(&pointer, 64));
  Documented("free", cudaSuccess, api.cudaFree(pointer));
  CUcontext popped = nullptr;
  Documented("pop", CUDA_SUCCESS, api.cuCtxPopCurrent(&popped));
  CUcontext current = nullptr;
  (void)api.cuCtxGetCurrent(&current);
  Holds("none_is_current", current == nullptr);
  device = -1;
  (void)api.cudaGetDevice(&device);
  Believed("the_runtime_is_where_it_was", 0, device);
  if (devices < 2) {
    Skip("the_first_device_is_untouched", "one device only");
    return;
  }
  unsigned flags = 0;
  int active = 99;
  (void)api.cuDevicePrimaryCtxGetState(0, &flags, &active);
  Documented("the_first_device_is_untouched", 0, active);
  (void)api.cudaSetDevice(last);
  (void)api.cudaSetDevice(0);
  (void)api.cuDevicePrimaryCtxGetState(0, &flags, &active);
  Documented("setting_it_back_makes_a_context", 1, active);
}

// A null free is the customary way to wake the runtime.
CASE_IN_OWN_PROCESS(contexts, runtime_before_anything) {
  Documented("no_error_yet", cudaSuccess, api.cudaPeekAtLastError());
  Documented("free_null", cudaSuccess, api.cudaFree(nullptr));
  int count = 0;
  Documented("driver_is_initialized", CUDA_SUCCESS,
             api.cuDeviceGetCount(&count));
  CUcontext context = nullptr;
  (void)api.cuCtxGetCurrent(&context);
  Holds("context_is_current", context != nullptr);
}

CASE_IN_OWN_PROCESS(contexts, errors_before_the_context) {
  Documented("bad_device", cudaErrorInvalidDevice, api.cudaSetDevice(-1));
  Documented("it_is_kept", cudaErrorInvalidDevice, api.cudaGetLastError());
  Documented("free_of_nonsense", cudaErrorInvalidValue,
             api.cudaFree(reinterpret_cast<void*>(0x1000)));
  void* pointer = nullptr;
  Documented("then_all_is_well", cudaSuccess, api.cudaMalloc(&pointer, 64));
  Documented("free", cudaSuccess, api.cudaFree(pointer));
}

}  // namespace conformance
