// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory: cudaMallocAsync, cudaFreeAsync and pools.

#include <cstdint>
#include <string>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool HasPools() {
  int supported = 0;
  (void)api.cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported,
                                   0);
  if (supported == 0) Skip("pools", "this device has no memory pools");
  return supported != 0;
}

cudaMemPool_t NewPool() {
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool = nullptr;
  (void)api.cudaMemPoolCreate(&pool, &props);
  return pool;
}

uint64_t Number(cudaMemPool_t pool, cudaMemPoolAttr which) {
  uint64_t value = UINT64_MAX;
  (void)api.cudaMemPoolGetAttribute(pool, which, &value);
  return value;
}

struct OnStream {
  OnStream() {
    (void)api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ~OnStream() {
    (void)api.cudaStreamSynchronize(stream);
    (void)api.cudaStreamDestroy(stream);
    (void)api.cudaGetLastError();
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  cudaStream_t stream = nullptr;
};

}  // namespace

CASE(pools, default_pool) {
  if (!HasPools()) return;
  cudaMemPool_t pool = nullptr;
  Documented("default", cudaSuccess, api.cudaDeviceGetDefaultMemPool(&pool, 0));
  Holds("is_one", pool != nullptr);
  cudaMemPool_t current = nullptr;
  Documented("current", cudaSuccess, api.cudaDeviceGetMemPool(&current, 0));
  Holds("default_is_current", current == pool);
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaDeviceGetDefaultMemPool(nullptr, 0));
  Documented("of_no_device", cudaErrorInvalidDevice,
             api.cudaDeviceGetDefaultMemPool(&pool, 1000));
  Refused("destroy", cudaErrorInvalidValue, api.cudaMemPoolDestroy(current));
  // Memory goes back at synchronisation unless a threshold keeps it.
  Documented("threshold_is_zero", uint64_t{0},
             Number(current, cudaMemPoolAttrReleaseThreshold));
  for (const cudaMemPoolAttr which :
       {cudaMemPoolReuseFollowEventDependencies,
        cudaMemPoolReuseAllowOpportunistic,
        cudaMemPoolReuseAllowInternalDependencies}) {
    int on = 0;
    (void)api.cudaMemPoolGetAttribute(current, which, &on);
    const std::string name = "reuse_" + std::to_string(which) + "_is_on";
    Documented(name.c_str(), 1, on);
  }
  (void)api.cudaGetLastError();
}

CASE(pools, allocate_and_free) {
  if (!HasPools()) return;
  const OnStream on;
  void* pointer = nullptr;
  Documented("allocate", cudaSuccess,
             api.cudaMallocAsync(&pointer, kMiB, on.stream));
  Holds("not_null", pointer != nullptr);
  Holds("aligned", reinterpret_cast<uintptr_t>(pointer) % 256 == 0);
  Documented("use_in_order", cudaSuccess,
             api.cudaMemsetAsync(pointer, 0x2B, kMiB, on.stream));
  unsigned char byte = 0;
  (void)api.cudaMemcpyAsync(&byte, static_cast<char*>(pointer) + kMiB - 1, 1,
                            cudaMemcpyDeviceToHost, on.stream);
  Documented("synchronize", cudaSuccess, api.cudaStreamSynchronize(on.stream));
  Documented("byte", 0x2B, static_cast<int>(byte));
  cudaPointerAttributes found;
  (void)api.cudaPointerGetAttributes(&found, pointer);
  Documented("is_device_memory", cudaMemoryTypeDevice, found.type);
  Documented("free", cudaSuccess, api.cudaFreeAsync(pointer, on.stream));
  void* again = nullptr;
  (void)api.cudaMallocAsync(&again, kMiB, on.stream);
  Believed("same_stream_reuses_it", static_cast<const void*>(pointer),
           static_cast<const void*>(again));
  // Both kinds of free take it.
  (void)api.cudaStreamSynchronize(on.stream);
  Documented("plain_free", cudaSuccess, api.cudaFree(again));
  void* plain = nullptr;
  (void)api.cudaMalloc(&plain, kMiB);
  Documented("free_plain_memory_in_order", cudaSuccess,
             api.cudaFreeAsync(plain, on.stream));
}

CASE(pools, wrong_arguments) {
  if (!HasPools()) return;
  const OnStream on;
  void* pointer = nullptr;
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaMallocAsync(nullptr, kMiB, on.stream));
  Believed("zero_bytes", cudaSuccess,
           api.cudaMallocAsync(&pointer, 0, on.stream));
  Documented("too_much", cudaErrorMemoryAllocation,
             api.cudaMallocAsync(&pointer, size_t{1} << 44, on.stream));
  int here = 0;
  Refused("free_of_the_stack", cudaErrorInvalidValue,
          api.cudaFreeAsync(&here, on.stream));
  Documented("from_no_pool", cudaErrorInvalidValue,
             api.cudaMallocFromPoolAsync(&pointer, kMiB, nullptr, on.stream));
  cudaMemPool_t pool = nullptr;
  Documented("create_of_null", cudaErrorInvalidValue,
             api.cudaMemPoolCreate(&pool, nullptr));
  Documented("works_afterwards", cudaSuccess,
             api.cudaMallocAsync(&pointer, kMiB, on.stream));
  Documented("free", cudaSuccess, api.cudaFreeAsync(pointer, on.stream));
}

// A pool of one's own: what it counts, what it keeps and when it lets go.
CASE(pools, own_pool) {
  if (!HasPools()) return;
  const OnStream on;
  const cudaMemPool_t pool = NewPool();
  if (!Holds("create", pool != nullptr)) return;
  uint64_t keep = UINT64_MAX;
  Documented("set_threshold", cudaSuccess,
             api.cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold,
                                         &keep));
  Documented("threshold", UINT64_MAX,
             Number(pool, cudaMemPoolAttrReleaseThreshold));
  Documented("nothing_used", uint64_t{0},
             Number(pool, cudaMemPoolAttrUsedMemCurrent));
  void* pointer = nullptr;
  Documented("allocate", cudaSuccess,
             api.cudaMallocFromPoolAsync(&pointer, 8 * kMiB, pool, on.stream));
  Documented("used", uint64_t{8 * kMiB},
             Number(pool, cudaMemPoolAttrUsedMemCurrent));
  Holds("reserved",
        Number(pool, cudaMemPoolAttrReservedMemCurrent) >= 8 * kMiB);
  Documented("free", cudaSuccess, api.cudaFreeAsync(pointer, on.stream));
  (void)api.cudaStreamSynchronize(on.stream);
  Documented("used_no_more", uint64_t{0},
             Number(pool, cudaMemPoolAttrUsedMemCurrent));
  Documented("most_used", uint64_t{8 * kMiB},
             Number(pool, cudaMemPoolAttrUsedMemHigh));
  Holds("kept_by_the_threshold",
        Number(pool, cudaMemPoolAttrReservedMemCurrent) >= 8 * kMiB);
  uint64_t zero = 0;
  Documented(
      "reset_most_used", cudaSuccess,
      api.cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
  Documented("is_reset", uint64_t{0}, Number(pool, cudaMemPoolAttrUsedMemHigh));
  Documented("trim", cudaSuccess, api.cudaMemPoolTrimTo(pool, 0));
  Documented("trimmed", uint64_t{0},
             Number(pool, cudaMemPoolAttrReservedMemCurrent));
  Documented("make_current", cudaSuccess, api.cudaDeviceSetMemPool(0, pool));
  cudaMemPool_t current = nullptr;
  (void)api.cudaDeviceGetMemPool(&current, 0);
  Holds("is_current", current == pool);
  (void)api.cudaMallocAsync(&pointer, 2 * kMiB, on.stream);
  Documented("allocations_come_from_it", uint64_t{2 * kMiB},
             Number(pool, cudaMemPoolAttrUsedMemCurrent));
  (void)api.cudaFreeAsync(pointer, on.stream);
  (void)api.cudaStreamSynchronize(on.stream);
  cudaMemPool_t first = nullptr;
  (void)api.cudaDeviceGetDefaultMemPool(&first, 0);
  (void)api.cudaDeviceSetMemPool(0, first);
  Documented("destroy", cudaSuccess, api.cudaMemPoolDestroy(pool));
}

// A pool that goes before its memory: what is out stays good.
CASE(pools, memory_outlives_its_pool) {
  if (!HasPools()) return;
  const OnStream on;
  const cudaMemPool_t pool = NewPool();
  void* pointer = nullptr;
  (void)api.cudaMallocFromPoolAsync(&pointer, kMiB, pool, on.stream);
  Documented("destroy", cudaSuccess, api.cudaMemPoolDestroy(pool));
  Documented("use", cudaSuccess,
             api.cudaMemsetAsync(pointer, 5, kMiB, on.stream));
  Documented("free", cudaSuccess, api.cudaFreeAsync(pointer, on.stream));
  Documented("synchronize", cudaSuccess, api.cudaStreamSynchronize(on.stream));
}

}  // namespace conformance
