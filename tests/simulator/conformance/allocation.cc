// SPDX-License-Identifier: Apache-2.0
//
// cudaMalloc, cudaFree and what can be asked about a pointer.

#include <cstdint>
#include <vector>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

void* Malloc(size_t bytes) {
  void* pointer = nullptr;
  (void)api.cudaMalloc(&pointer, bytes);
  return pointer;
}

size_t FreeBytes() {
  size_t free = 0;
  size_t total = 0;
  (void)api.cudaMemGetInfo(&free, &total);
  return free;
}

}  // namespace

// Zero bytes: the runtime succeeds with a null pointer, the driver refuses.
CASE(allocation, zero_bytes) {
  void* pointer = &pointer;
  Documented("runtime", cudaSuccess, api.cudaMalloc(&pointer, 0));
  Holds("pointer_is_null", pointer == nullptr);
  Documented("free_it", cudaSuccess, api.cudaFree(pointer));
  CUdeviceptr address = 0;
  Documented("driver", CUDA_ERROR_INVALID_VALUE, api.cuMemAlloc(&address, 0));
}

CASE(allocation, null_arguments) {
  Documented("malloc", cudaErrorInvalidValue, api.cudaMalloc(nullptr, 64));
  Documented("driver_alloc", CUDA_ERROR_INVALID_VALUE,
             api.cuMemAlloc(nullptr, 64));
  // Freeing null does nothing.
  Documented("free", cudaSuccess, api.cudaFree(nullptr));
  Believed("driver_free", CUDA_SUCCESS, api.cuMemFree(0));
  // The order when two things are wrong.
  Believed("malloc_zero_into_null", cudaErrorInvalidValue,
           api.cudaMalloc(nullptr, 0));
}

CASE(allocation, too_much) {
  void* pointer = reinterpret_cast<void*>(64);
  Documented("more_than_there_is", cudaErrorMemoryAllocation,
             api.cudaMalloc(&pointer, size_t{1} << 44));
  Documented("absurd", cudaErrorMemoryAllocation,
             api.cudaMalloc(&pointer, SIZE_MAX));
  CUdeviceptr address = 0;
  Documented("driver", CUDA_ERROR_OUT_OF_MEMORY,
             api.cuMemAlloc(&address, size_t{1} << 44));
  (void)api.cudaGetLastError();
  void* after = nullptr;
  Documented("works_afterwards", cudaSuccess, api.cudaMalloc(&after, kMiB));
  Documented("free", cudaSuccess, api.cudaFree(after));
}

// Every address is good for any type and any copy: at least 256 bytes.
CASE(allocation, alignment) {
  std::vector<void*> all;
  bool aligned = true;
  bool distinct = true;
  for (const size_t bytes : {1u, 3u, 255u, 256u, 257u, 4097u, 1u << 20}) {
    void* const pointer = Malloc(bytes);
    aligned &= reinterpret_cast<uintptr_t>(pointer) % 256 == 0;
    for (void* other : all) distinct &= other != pointer;
    all.push_back(pointer);
  }
  Holds("of_256", aligned);
  Holds("distinct", distinct);
  bool freed = true;
  for (void* pointer : all) freed &= api.cudaFree(pointer) == cudaSuccess;
  Holds("all_freed", freed);
  void* const large = Malloc(2 * kMiB);
  BelievedTo("two_mib_at_two_mib",
             reinterpret_cast<uintptr_t>(large) % (2 * kMiB) == 0);
  (void)api.cudaFree(large);
}

// The reference lists an invalid value for a pointer that was freed before or
// never came from cudaMalloc.
CASE(allocation, wrong_frees) {
  void* const pointer = Malloc(4 * kMiB);
  Refused("interior", cudaErrorInvalidValue,
          api.cudaFree(static_cast<char*>(pointer) + 512));
  Documented("once", cudaSuccess, api.cudaFree(pointer));
  Documented("twice", cudaErrorInvalidValue, api.cudaFree(pointer));
  int here = 0;
  Documented("of_the_stack", cudaErrorInvalidValue, api.cudaFree(&here));
  Documented("of_no_address", cudaErrorInvalidValue,
             api.cudaFree(reinterpret_cast<void*>(0x10)));
  void* host = nullptr;
  (void)api.cudaMallocHost(&host, 4096);
  Believed("of_pinned_memory", cudaErrorInvalidValue, api.cudaFree(host));
  Documented("pinned_is_still_there", cudaSuccess, api.cudaFreeHost(host));
  Documented("driver_nonsense", CUDA_ERROR_INVALID_VALUE,
             api.cuMemFree(0x1000));
  (void)api.cudaGetLastError();
  Documented("nothing_is_broken", cudaSuccess, api.cudaDeviceSynchronize());
}

// The runtime and the driver share allocations.
CASE(allocation, runtime_and_driver) {
  CUdeviceptr address = 0;
  Documented("driver_alloc", CUDA_SUCCESS, api.cuMemAlloc(&address, kMiB));
  Documented("runtime_free", cudaSuccess,
             api.cudaFree(reinterpret_cast<void*>(address)));
  void* const pointer = Malloc(kMiB);
  Documented("driver_free", CUDA_SUCCESS,
             api.cuMemFree(reinterpret_cast<CUdeviceptr>(pointer)));
}

CASE(allocation, memory_info) {
  size_t free = 0;
  size_t total = 0;
  Documented("info", cudaSuccess, api.cudaMemGetInfo(&free, &total));
  Holds("free_is_not_more", free <= total && free > 0);
  (void)Malloc(0);
  void* const warm = Malloc(1);  // small ones come from a shared page
  const size_t before = FreeBytes();
  void* const pointer = Malloc(64 * kMiB);
  const size_t during = FreeBytes();
  Holds("falls_by_the_size", before - during >= 64 * kMiB);
  // Nothing else runs on the device, and pages are 2 MiB.
  BelievedTo("falls_by_no_more", before - during <= 66 * kMiB);
  (void)api.cudaFree(pointer);
  BelievedTo("rises_again", FreeBytes() == before);
  (void)api.cudaFree(warm);
  size_t driver_free = 0;
  size_t driver_total = 0;
  Documented("driver", CUDA_SUCCESS,
             api.cuMemGetInfo(&driver_free, &driver_total));
  Documented("same_total", total, driver_total);
  // Small allocations share a page: no fall, or one of a page.
  void* const small = Malloc(512);
  BelievedTo("small_costs_a_page_at_most",
             before - FreeBytes() <= 2 * kMiB || FreeBytes() >= before);
  (void)api.cudaFree(small);
}

CASE(allocation, attributes_of_device_memory) {
  char* const pointer = static_cast<char*>(Malloc(4 * kMiB));
  cudaPointerAttributes found;
  Documented("base", cudaSuccess,
             api.cudaPointerGetAttributes(&found, pointer));
  Documented("type", cudaMemoryTypeDevice, found.type);
  Documented("device", 0, found.device);
  Holds("device_pointer", found.devicePointer == pointer);
  Holds("no_host_pointer", found.hostPointer == nullptr);
  Documented("interior", cudaSuccess,
             api.cudaPointerGetAttributes(&found, pointer + 1000));
  Documented("interior_type", cudaMemoryTypeDevice, found.type);
  Holds("interior_pointer", found.devicePointer == pointer + 1000);
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(pointer);
  unsigned type = 0;
  Documented("driver_type_call", CUDA_SUCCESS,
             api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       address));
  Documented("driver_type", static_cast<unsigned>(CU_MEMORYTYPE_DEVICE), type);
  int ordinal = -1;
  (void)api.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  address);
  Documented("driver_ordinal", 0, ordinal);
  CUcontext context = nullptr;
  CUcontext current = nullptr;
  (void)api.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT,
                                  address);
  (void)api.cuCtxGetCurrent(&current);
  Holds("driver_context", context == current && context != nullptr);
  CUdeviceptr start = 0;
  (void)api.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  address + 5000);
  Documented("range_start", address, start);
  size_t size = 0;
  (void)api.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                  address + 5000);
  Holds("range_size", size >= 4 * kMiB);
  void* host = nullptr;
  Documented("driver_host_pointer", CUDA_ERROR_INVALID_VALUE,
             api.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                       address));
  CUdeviceptr base = 0;
  Documented("address_range", CUDA_SUCCESS,
             api.cuMemGetAddressRange(&base, &size, address + 100));
  Documented("address_range_base", address, base);
  Believed("address_range_size", size_t{4} << 20, size);
  Documented("address_range_may_be_null", CUDA_SUCCESS,
             api.cuMemGetAddressRange(nullptr, nullptr, address));
  (void)api.cudaFree(pointer);
  (void)api.cudaPointerGetAttributes(&found, pointer);
  Believed("freed_is_unregistered", cudaMemoryTypeUnregistered, found.type);
  Documented("freed_has_no_range", CUDA_ERROR_NOT_FOUND,
             api.cuMemGetAddressRange(&base, &size, address));
}

// Since 11.0 a pointer CUDA does not know is an answer, not an error.
CASE(allocation, attributes_of_ordinary_memory) {
  int here = 0;
  cudaPointerAttributes found;
  Documented("call", cudaSuccess, api.cudaPointerGetAttributes(&found, &here));
  Documented("type", cudaMemoryTypeUnregistered, found.type);
  Believed("device", -2, found.device);
  Documented("no_error_is_kept", cudaSuccess, api.cudaPeekAtLastError());
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaPointerGetAttributes(nullptr, &here));
  (void)api.cudaGetLastError();
  unsigned type = 0;
  Documented("driver", CUDA_ERROR_INVALID_VALUE,
             api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       reinterpret_cast<CUdeviceptr>(&here)));
  Documented(
      "driver_into_null", CUDA_ERROR_INVALID_VALUE,
      api.cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                reinterpret_cast<CUdeviceptr>(&here)));
  CUdeviceptr base = 0;
  size_t size = 0;
  Documented("no_range", CUDA_ERROR_NOT_FOUND,
             api.cuMemGetAddressRange(&base, &size, 0x1000));
}

// A block freed and allocated again is usable; many live at once do not
// overlap.
CASE(allocation, many) {
  constexpr int kCount = 64;
  constexpr size_t kBytes = 100000;
  std::vector<char*> all;
  for (int i = 0; i < kCount; ++i) {
    all.push_back(static_cast<char*>(Malloc(kBytes)));
  }
  bool apart = true;
  for (char* one : all) {
    for (char* other : all) {
      if (one != other && one < other + kBytes && other < one + kBytes) {
        apart = false;
      }
    }
  }
  Holds("do_not_overlap", apart);
  for (int i = 0; i < kCount; ++i) (void)api.cudaMemset(all[i], i, kBytes);
  bool right = true;
  for (int i = 0; i < kCount; ++i) {
    unsigned char byte = 255;
    (void)api.cudaMemcpy(&byte, all[i] + kBytes - 1, 1, cudaMemcpyDeviceToHost);
    right &= byte == i;
  }
  Holds("keep_their_bytes", right);
  bool freed = true;
  for (char* pointer : all) freed &= api.cudaFree(pointer) == cudaSuccess;
  Holds("all_freed", freed);
}

}  // namespace conformance
