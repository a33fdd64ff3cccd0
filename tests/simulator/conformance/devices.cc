// SPDX-License-Identifier: Apache-2.0
//
// Devices, the runtime's error state, and a broken device.

#include <cstring>
#include <string>
#include <thread>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr auto kAnswerOfDevice = cudaDevAttrMaxThreadsPerBlock;

int Devices() {
  int count = 0;
  (void)api.cudaGetDeviceCount(&count);
  return count;
}

}  // namespace

// The count and the current device are answered without a device's help.
CASE(devices, counting) {
  int count = 0;
  Documented("count", cudaSuccess, api.cudaGetDeviceCount(&count));
  Holds("at_least_one", count >= 1);
  int device = -1;
  Documented("current", cudaSuccess, api.cudaGetDevice(&device));
  Documented("first_is_current", 0, device);
  // A null result pointer is an invalid argument everywhere.
  Documented("count_into_null", cudaErrorInvalidValue,
             api.cudaGetDeviceCount(nullptr));
  Documented("current_into_null", cudaErrorInvalidValue,
             api.cudaGetDevice(nullptr));
}

// The ordinal must be below the count: the device pages' InvalidDevice.
CASE(devices, invalid_ordinals) {
  const int count = Devices();
  Documented("set_too_high", cudaErrorInvalidDevice, api.cudaSetDevice(count));
  Documented("set_negative", cudaErrorInvalidDevice, api.cudaSetDevice(-1));
  int device = -1;
  (void)api.cudaGetDevice(&device);
  Documented("current_is_kept", 0, device);
  cudaDeviceProp properties;
  Documented("properties_too_high", cudaErrorInvalidDevice,
             api.cudaGetDeviceProperties(&properties, count));
  Documented("properties_negative", cudaErrorInvalidDevice,
             api.cudaGetDeviceProperties(&properties, -1));
  int value = 0;
  Documented("attribute_too_high", cudaErrorInvalidDevice,
             api.cudaDeviceGetAttribute(&value, kAnswerOfDevice, count));
  Documented("attribute_negative", cudaErrorInvalidDevice,
             api.cudaDeviceGetAttribute(&value, kAnswerOfDevice, -1));
  int can = 0;
  Documented("peer_too_high", cudaErrorInvalidDevice,
             api.cudaDeviceCanAccessPeer(&can, 0, count));
  Documented("peer_from_too_high", cudaErrorInvalidDevice,
             api.cudaDeviceCanAccessPeer(&can, count, 0));
  Documented("peer_negative", cudaErrorInvalidDevice,
             api.cudaDeviceCanAccessPeer(&can, 0, -1));
  CUdevice handle = 0;
  Documented("driver_too_high", CUDA_ERROR_INVALID_DEVICE,
             api.cuDeviceGet(&handle, count));
  Documented("driver_negative", CUDA_ERROR_INVALID_DEVICE,
             api.cuDeviceGet(&handle, -1));
  size_t bytes = 0;
  Documented("driver_memory_too_high", CUDA_ERROR_INVALID_DEVICE,
             api.cuDeviceTotalMem(&bytes, count));
  char name[64];
  Documented("driver_name_too_high", CUDA_ERROR_INVALID_DEVICE,
             api.cuDeviceGetName(name, sizeof(name), count));
  Documented("driver_attribute_too_high", CUDA_ERROR_INVALID_DEVICE,
             api.cuDeviceGetAttribute(
                 &value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, count));
  CUcontext context = nullptr;
  Documented("driver_retain_too_high", CUDA_ERROR_INVALID_DEVICE,
             api.cuDevicePrimaryCtxRetain(&context, count));
}

// An attribute is checked after its pointer; numbers outside the enumeration
// are invalid values.
CASE(devices, attributes) {
  int value = -1;
  Documented("warp_size", cudaSuccess,
             api.cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
  Documented("warp_is_32", 32, value);
  Documented("unknown", cudaErrorInvalidValue,
             api.cudaDeviceGetAttribute(
                 &value, static_cast<cudaDeviceAttr>(100000), 0));
  Documented(
      "zero_is_no_attribute", cudaErrorInvalidValue,
      api.cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(0), 0));
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0));
  Documented("driver_unknown", CUDA_ERROR_INVALID_VALUE,
             api.cuDeviceGetAttribute(
                 &value, static_cast<CUdevice_attribute>(100000), 0));
  Documented(
      "driver_into_null", CUDA_ERROR_INVALID_VALUE,
      api.cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  int unified = 0;
  (void)api.cudaDeviceGetAttribute(&unified, cudaDevAttrUnifiedAddressing, 0);
  Documented("addresses_are_unified", 1, unified);
  int vmm = 0;
  (void)api.cuDeviceGetAttribute(
      &vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  Documented("virtual_memory_management", 1, vmm);
}

// One device, described in three places.
CASE(devices, properties_agree) {
  cudaDeviceProp properties;
  std::memset(&properties, 0, sizeof(properties));
  Documented("properties", cudaSuccess,
             api.cudaGetDeviceProperties(&properties, 0));
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaGetDeviceProperties(nullptr, 0));
  int value = 0;
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0);
  Documented("multiprocessors", properties.multiProcessorCount, value);
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrMaxThreadsPerBlock, 0);
  Documented("threads_per_block", properties.maxThreadsPerBlock, value);
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor,
                                   0);
  Documented("major", properties.major, value);
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor,
                                   0);
  Documented("minor", properties.minor, value);
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, 0);
  Documented("l2", properties.l2CacheSize, value);
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlock,
                                   0);
  Documented("shared", static_cast<int>(properties.sharedMemPerBlock), value);
  (void)api.cudaDeviceGetAttribute(&value, cudaDevAttrAsyncEngineCount, 0);
  Documented("copy_engines", properties.asyncEngineCount, value);
  size_t total = 0;
  (void)api.cuDeviceTotalMem(&total, 0);
  Documented("total_memory", properties.totalGlobalMem, total);
  size_t free = 0;
  size_t seen = 0;
  (void)api.cudaMemGetInfo(&free, &seen);
  Documented("memory_info_total", total, seen);
  char name[256] = "";
  (void)api.cuDeviceGetName(name, sizeof(name), 0);
  Holds("name", std::strcmp(name, properties.name) == 0);
  char bus[32] = "";
  Documented("bus_id", cudaSuccess,
             api.cudaDeviceGetPCIBusId(bus, sizeof(bus), 0));
  // domain:bus:device.function
  Holds("bus_id_form", std::strlen(bus) >= 12 && bus[4] == ':' &&
                           bus[7] == ':' && bus[10] == '.');
  Documented("bus_id_into_null", cudaErrorInvalidValue,
             api.cudaDeviceGetPCIBusId(nullptr, 32, 0));
  Documented("bus_id_of_no_device", cudaErrorInvalidDevice,
             api.cudaDeviceGetPCIBusId(bus, sizeof(bus), Devices()));
}

CASE(devices, versions) {
  int runtime = 0;
  int driver = 0;
  Documented("runtime", cudaSuccess, api.cudaRuntimeGetVersion(&runtime));
  Documented("driver", cudaSuccess, api.cudaDriverGetVersion(&driver));
  Holds("runtime_is_13", runtime / 1000 == 13);
  Holds("driver_is_not_older", driver >= 13000);
  int again = 0;
  Documented("driver_itself", CUDA_SUCCESS, api.cuDriverGetVersion(&again));
  Documented("same_driver", driver, again);
  Documented("runtime_into_null", cudaErrorInvalidValue,
             api.cudaRuntimeGetVersion(nullptr));
  Documented("driver_into_null", cudaErrorInvalidValue,
             api.cudaDriverGetVersion(nullptr));
  Documented("driver_itself_into_null", CUDA_ERROR_INVALID_VALUE,
             api.cuDriverGetVersion(nullptr));
}

// cudaGetLastError gives the thread's last error and forgets it, peeking does
// not forget, success does not overwrite.
CASE(devices, last_error) {
  Documented("clean", cudaSuccess, api.cudaGetLastError());
  (void)api.cudaSetDevice(-1);
  Documented("peek", cudaErrorInvalidDevice, api.cudaPeekAtLastError());
  Documented("peek_again", cudaErrorInvalidDevice, api.cudaPeekAtLastError());
  int device = 0;
  (void)api.cudaGetDevice(&device);
  Documented("success_keeps_it", cudaErrorInvalidDevice,
             api.cudaPeekAtLastError());
  void* pointer = nullptr;
  (void)api.cudaHostAlloc(&pointer, 64, 0xF000);
  Documented("the_last_one_counts", cudaErrorInvalidValue,
             api.cudaPeekAtLastError());
  Documented("get", cudaErrorInvalidValue, api.cudaGetLastError());
  Documented("forgotten", cudaSuccess, api.cudaGetLastError());
  Documented("peek_after", cudaSuccess, api.cudaPeekAtLastError());
}

CASE(devices, last_error_is_per_thread) {
  (void)api.cudaSetDevice(-1);
  cudaError_t other = cudaErrorUnknown;
  cudaError_t own = cudaSuccess;
  std::thread thread([&] {
    other = api.cudaPeekAtLastError();
    (void)api.cudaFree(&other);
    own = api.cudaGetLastError();
  });
  thread.join();
  Documented("other_thread_is_clean", cudaSuccess, other);
  Documented("other_thread_has_its_own", cudaErrorInvalidValue, own);
  Documented("ours_is_kept", cudaErrorInvalidDevice, api.cudaGetLastError());
}

// PyTorch clears NotReady after each query: it is kept like an error. Driver
// errors never are.
CASE(devices, what_counts_as_last_error) {
  CUdevice device = 0;
  (void)api.cuDeviceGet(&device, -1);
  Documented("driver_errors_do_not", cudaSuccess, api.cudaGetLastError());
  void* pointer = nullptr;
  Documented("out_of_memory", cudaErrorMemoryAllocation,
             api.cudaMalloc(&pointer, size_t{1} << 50));
  Documented("out_of_memory_does", cudaErrorMemoryAllocation,
             api.cudaGetLastError());
  Documented("out_of_memory_is_not_sticky", cudaSuccess,
             api.cudaDeviceSynchronize());
}

// The current device belongs to the thread; a new thread starts with 0.
CASE(devices, current_is_per_thread) {
  const int count = Devices();
  if (count < 2) {
    Skip("set_in_one_thread", "one device only");
    return;
  }
  Documented("set", cudaSuccess, api.cudaSetDevice(1));
  int here = -1;
  int there = -1;
  std::thread thread([&] { (void)api.cudaGetDevice(&there); });
  thread.join();
  (void)api.cudaGetDevice(&here);
  Documented("here", 1, here);
  Documented("there", 0, there);
  Documented("back", cudaSuccess, api.cudaSetDevice(0));
}

// An access the device may not make breaks the context: every later call that
// needs it repeats the error, and asking does not clear it. Only its own
// process may see this.
CASE_IN_OWN_PROCESS(devices, sticky_error) {
  const CUmemAllocationProp prop = [] {
    CUmemAllocationProp made = {};
    made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return made;
  }();
  (void)api.cudaFree(nullptr);
  constexpr size_t kBytes = 2 << 20;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  (void)api.cuMemAddressReserve(&range, kBytes, 0, 0, 0);
  (void)api.cuMemCreate(&handle, kBytes, &prop, 0);
  (void)api.cuMemMap(range, kBytes, 0, handle, 0);
  // Mapped, but no access was ever granted. Whether the copy is refused at the
  // call or breaks the device is the driver's choice.
  cudaStream_t stream = nullptr;
  (void)api.cudaStreamCreate(&stream);
  const cudaError_t call =
      api.cudaMemsetAsync(reinterpret_cast<void*>(range), 1, kBytes, stream);
  const cudaError_t end = api.cudaStreamSynchronize(stream);
  Holds("it_is_an_error", call != cudaSuccess || end != cudaSuccess);
  BelievedTo("illegal_address_or_invalid_value",
             call == cudaErrorInvalidValue || call == cudaErrorIllegalAddress ||
                 end == cudaErrorIllegalAddress);
  if (end != cudaErrorIllegalAddress) {
    Skip("repeats", "the driver refused the call instead");
    return;
  }
  Documented("synchronize_repeats", cudaErrorIllegalAddress,
             api.cudaDeviceSynchronize());
  void* pointer = nullptr;
  Documented("malloc_repeats", cudaErrorIllegalAddress,
             api.cudaMalloc(&pointer, 64));
  Documented("get_last", cudaErrorIllegalAddress, api.cudaGetLastError());
  Documented("get_last_does_not_clear", cudaErrorIllegalAddress,
             api.cudaDeviceSynchronize());
  Documented("driver_says_the_same", CUDA_ERROR_ILLEGAL_ADDRESS,
             api.cuCtxSynchronize());
  int device = -1;
  Believed("questions_are_answered", cudaSuccess, api.cudaGetDevice(&device));
}

}  // namespace conformance
