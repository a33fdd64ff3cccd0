// SPDX-License-Identifier: Apache-2.0
//
// What the cases of virtual memory management share: a page of it, in one call
// each, without a check.

#ifndef STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_VIRTUAL_MEMORY_H_
#define STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_VIRTUAL_MEMORY_H_

#include <cstddef>

#include "tests/simulator/conformance/api.h"

namespace conformance {

constexpr auto kOk = CUDA_SUCCESS;
constexpr auto kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr auto kWhole = CUDA_ERROR_NOT_SUPPORTED;  // a part of an allocation
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

inline CUmemAllocationProp Prop(
    CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE, int id = 0) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = type;
  prop.location.id = id;
  return prop;
}

inline size_t Granularity() {
  const CUmemAllocationProp prop = Prop();
  size_t bytes = 0;
  (void)api.cuMemGetAllocationGranularity(&bytes, &prop,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return bytes == 0 ? size_t{2} << 20 : bytes;
}

inline CUdeviceptr Reserve(size_t bytes) {
  CUdeviceptr range = 0;
  (void)api.cuMemAddressReserve(&range, bytes, 0, 0, 0);
  return range;
}

inline CUmemGenericAllocationHandle Create(size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = Prop();
  (void)api.cuMemCreate(&handle, bytes, &prop, 0);
  return handle;
}

inline CUresult Grant(CUdeviceptr range, size_t bytes, CUmemAccess_flags flags,
                      int device = 0) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = flags;
  return api.cuMemSetAccess(range, bytes, &access, 1);
}

inline CUresult AccessAt(CUdeviceptr address, unsigned long long* flags) {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return api.cuMemGetAccess(flags, &location, address);
}

// Every case wakes the runtime, so that there is a context.
inline void Wake() { (void)api.cudaFree(nullptr); }

inline size_t FreeBytes() {
  size_t free = 0;
  size_t total = 0;
  (void)api.cudaMemGetInfo(&free, &total);
  return free;
}

// A reservation of `handles` pages, each with a handle of its own.
struct Mapped {
  explicit Mapped(int handles, bool grant = true)
      : page(Granularity()), bytes(page * handles), range(Reserve(bytes)) {
    for (int i = 0; i < handles; ++i) {
      const CUmemGenericAllocationHandle handle = Create(page);
      (void)api.cuMemMap(range + i * page, page, 0, handle, 0);
      (void)api.cuMemRelease(handle);
    }
    if (grant) (void)Grant(range, bytes, kReadWrite);
  }
  ~Mapped() {
    for (size_t at = 0; at < bytes; at += page) {
      (void)api.cuMemUnmap(range + at, page);
    }
    (void)api.cuMemAddressFree(range, bytes);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const size_t page;
  const size_t bytes;
  const CUdeviceptr range;
};

}  // namespace conformance

#endif  // STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_VIRTUAL_MEMORY_H_
