// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory: allocated and registered.

#include <sys/mman.h>

#include <cstring>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr size_t kPage = 4096;

// Pages of the program's own.
struct Pages {
  explicit Pages(size_t count) : bytes(count * kPage) {
    data = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(data, 1, bytes);
  }
  ~Pages() { munmap(data, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  const size_t bytes;
  char* data = nullptr;
};

cudaMemoryType TypeOf(const void* pointer) {
  cudaPointerAttributes found;
  std::memset(&found, 0, sizeof(found));
  (void)api.cudaPointerGetAttributes(&found, pointer);
  return found.type;
}

}  // namespace

CASE(host_memory, allocated) {
  void* pointer = nullptr;
  Documented("malloc_host", cudaSuccess, api.cudaMallocHost(&pointer, 10000));
  std::memset(pointer, 7, 10000);
  Holds("is_readable", static_cast<char*>(pointer)[9999] == 7);
  BelievedTo("page_aligned", reinterpret_cast<uintptr_t>(pointer) % kPage == 0);
  cudaPointerAttributes found;
  Documented("attributes", cudaSuccess,
             api.cudaPointerGetAttributes(&found, pointer));
  Documented("type", cudaMemoryTypeHost, found.type);
  Documented("device", 0, found.device);
  Holds("host_pointer", found.hostPointer == pointer);
  Holds("device_pointer_is_the_same", found.devicePointer == pointer);
  Documented("type_within", cudaMemoryTypeHost,
             TypeOf(static_cast<char*>(pointer) + 5000));
  void* device = nullptr;
  Documented("device_pointer_call", cudaSuccess,
             api.cudaHostGetDevicePointer(&device, pointer, 0));
  Holds("one_address_for_both", device == pointer);
  Documented("device_pointer_flags", cudaErrorInvalidValue,
             api.cudaHostGetDevicePointer(&device, pointer, 1));
  Documented("device_pointer_into_null", cudaErrorInvalidValue,
             api.cudaHostGetDevicePointer(nullptr, pointer, 0));
  unsigned type = 0;
  (void)api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(pointer));
  Documented("driver_type", static_cast<unsigned>(CU_MEMORYTYPE_HOST), type);
  Documented("free", cudaSuccess, api.cudaFreeHost(pointer));
  Documented("free_twice", cudaErrorInvalidValue, api.cudaFreeHost(pointer));
  (void)api.cudaGetLastError();
}

CASE(host_memory, edges) {
  void* pointer = &pointer;
  Believed("zero_bytes", cudaSuccess, api.cudaMallocHost(&pointer, 0));
  BelievedTo("zero_bytes_is_null", pointer == nullptr);
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaMallocHost(nullptr, 64));
  Documented("free_null", cudaSuccess, api.cudaFreeHost(nullptr));
  int here = 0;
  Documented("free_of_the_stack", cudaErrorInvalidValue,
             api.cudaFreeHost(&here));
  Documented("bad_flags", cudaErrorInvalidValue,
             api.cudaHostAlloc(&pointer, 64, 0x80));
  Documented("too_much", cudaErrorMemoryAllocation,
             api.cudaHostAlloc(&pointer, size_t{1} << 50, 0));
  (void)api.cudaGetLastError();
  void* device = nullptr;
  (void)api.cudaMalloc(&device, 64);
  Refused("free_of_device_memory", cudaErrorInvalidValue,
          api.cudaFreeHost(device));
  Documented("flags_of_device_memory", cudaErrorInvalidValue, [&] {
    unsigned flags = 0;
    return api.cudaHostGetFlags(&flags, device);
  }());
  (void)api.cudaFree(device);
  (void)api.cudaMallocHost(&pointer, 3 * kPage);
  Refused("free_of_the_middle", cudaErrorInvalidValue,
          api.cudaFreeHost(static_cast<char*>(pointer) + kPage));
  Documented("free", cudaSuccess, api.cudaFreeHost(pointer));
  (void)api.cudaGetLastError();
}

CASE(host_memory, flags) {
  void* pointer = nullptr;
  unsigned flags = 0;
  Documented("alloc", cudaSuccess,
             api.cudaHostAlloc(&pointer, kPage, cudaHostAllocPortable));
  Documented("get", cudaSuccess, api.cudaHostGetFlags(&flags, pointer));
  Holds("portable", (flags & cudaHostAllocPortable) != 0);
  // With unified addresses all pinned memory is mapped.
  BelievedTo("mapped", (flags & cudaHostAllocMapped) != 0);
  Documented("get_into_null", cudaErrorInvalidValue,
             api.cudaHostGetFlags(nullptr, pointer));
  (void)api.cudaFreeHost(pointer);
  Documented(
      "alloc_combined", cudaSuccess,
      api.cudaHostAlloc(&pointer, kPage,
                        cudaHostAllocMapped | cudaHostAllocWriteCombined));
  (void)api.cudaHostGetFlags(&flags, pointer);
  Holds("write_combined", (flags & cudaHostAllocWriteCombined) != 0);
  (void)api.cudaFreeHost(pointer);
  int here = 0;
  Documented("of_ordinary_memory", cudaErrorInvalidValue,
             api.cudaHostGetFlags(&flags, &here));
  (void)api.cudaGetLastError();
}

CASE(host_memory, registered) {
  Pages pages(8);
  Documented("before", cudaMemoryTypeUnregistered, TypeOf(pages.data));
  Documented(
      "register", cudaSuccess,
      api.cudaHostRegister(pages.data, pages.bytes, cudaHostRegisterDefault));
  Documented("type", cudaMemoryTypeHost, TypeOf(pages.data));
  Documented("type_at_the_end", cudaMemoryTypeHost,
             TypeOf(pages.data + pages.bytes - 1));
  void* device = nullptr;
  Documented("device_pointer", cudaSuccess,
             api.cudaHostGetDevicePointer(&device, pages.data, 0));
  int same = 0;
  (void)api.cudaDeviceGetAttribute(
      &same, cudaDevAttrCanUseHostPointerForRegisteredMem, 0);
  Holds("device_pointer_is_the_same", same == 0 || device == pages.data);
  Documented("register_again", cudaErrorHostMemoryAlreadyRegistered,
             api.cudaHostRegister(pages.data, pages.bytes, 0));
  Documented("register_part", cudaErrorHostMemoryAlreadyRegistered,
             api.cudaHostRegister(pages.data + kPage, kPage, 0));
  Refused("free_host", cudaErrorInvalidValue, api.cudaFreeHost(pages.data));
  Believed("unregister_part", cudaErrorInvalidValue,
           api.cudaHostUnregister(pages.data + kPage));
  Documented("unregister", cudaSuccess, api.cudaHostUnregister(pages.data));
  Documented("unregister_twice", cudaErrorHostMemoryNotRegistered,
             api.cudaHostUnregister(pages.data));
  Documented("after", cudaMemoryTypeUnregistered, TypeOf(pages.data));
  Holds("bytes_are_kept", pages.data[pages.bytes - 1] == 1);
  Documented(
      "register_anew", cudaSuccess,
      api.cudaHostRegister(pages.data, pages.bytes, cudaHostRegisterPortable));
  Documented("unregister_anew", cudaSuccess,
             api.cudaHostUnregister(pages.data));
  (void)api.cudaGetLastError();
}

CASE(host_memory, registering_wrongly) {
  Pages pages(8);
  Documented("null", cudaErrorInvalidValue,
             api.cudaHostRegister(nullptr, kPage, 0));
  Documented("zero_bytes", cudaErrorInvalidValue,
             api.cudaHostRegister(pages.data, 0, 0));
  Documented("bad_flags", cudaErrorInvalidValue,
             api.cudaHostRegister(pages.data, kPage, 0x800));
  Documented("unregister_nothing", cudaErrorHostMemoryNotRegistered,
             api.cudaHostUnregister(pages.data));
  void* pinned = nullptr;
  (void)api.cudaMallocHost(&pinned, kPage);
  Believed("unregister_allocated", cudaErrorInvalidValue,
           api.cudaHostUnregister(pinned));
  Believed("register_allocated", cudaErrorInvalidValue,
           api.cudaHostRegister(pinned, kPage, 0));
  (void)api.cudaFreeHost(pinned);
  Documented("two_ranges_side_by_side", cudaSuccess,
             api.cudaHostRegister(pages.data, 2 * kPage, 0));
  Documented("second", cudaSuccess,
             api.cudaHostRegister(pages.data + 2 * kPage, 2 * kPage, 0));
  Believed("overlapping_the_end", cudaErrorHostMemoryAlreadyRegistered,
           api.cudaHostRegister(pages.data + 3 * kPage, 2 * kPage, 0));
  Documented("unregister_first", cudaSuccess,
             api.cudaHostUnregister(pages.data));
  Documented("second_stays", cudaMemoryTypeHost,
             TypeOf(pages.data + 2 * kPage));
  Documented("unregister_second", cudaSuccess,
             api.cudaHostUnregister(pages.data + 2 * kPage));
  CUresult driver = api.cuMemHostRegister(pages.data, kPage, 0x800);
  Documented("driver_bad_flags", CUDA_ERROR_INVALID_VALUE, driver);
  Documented("driver_unregister_nothing", CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
             api.cuMemHostUnregister(pages.data));
  (void)api.cudaGetLastError();
}

// Registered memory is pinned for copies as allocated memory is.
CASE(host_memory, copies_of_registered) {
  Pages pages(4);
  std::memset(pages.data, 0x3C, pages.bytes);
  (void)api.cudaHostRegister(pages.data, pages.bytes, 0);
  void* device = nullptr;
  (void)api.cudaMalloc(&device, pages.bytes);
  cudaStream_t stream = nullptr;
  (void)api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  Documented("up", cudaSuccess,
             api.cudaMemcpyAsync(device, pages.data, pages.bytes,
                                 cudaMemcpyHostToDevice, stream));
  (void)api.cudaStreamSynchronize(stream);
  std::memset(pages.data, 0, pages.bytes);
  Documented("down", cudaSuccess,
             api.cudaMemcpyAsync(pages.data, device, pages.bytes,
                                 cudaMemcpyDeviceToHost, stream));
  (void)api.cudaStreamSynchronize(stream);
  Documented("bytes", 0x3C, static_cast<int>(pages.data[pages.bytes - 1]));
  (void)api.cudaStreamDestroy(stream);
  (void)api.cudaFree(device);
  Documented("unregister", cudaSuccess, api.cudaHostUnregister(pages.data));
}

}  // namespace conformance
