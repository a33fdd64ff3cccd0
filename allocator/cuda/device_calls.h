// SPDX-License-Identifier: Apache-2.0
// Conversions to CUDA's types, and macros that return the error of a failed
// call. Only methods of Device use them.
//
// Thread-safety: plain functions. Locks: takes none.
// Errors: a macro returns from its function, which returns a Status or a
// Result, with the error of CUDA and the name of the call.
#ifndef STRATALLOC_ALLOCATOR_CUDA_DEVICE_CALLS_H_
#define STRATALLOC_ALLOCATOR_CUDA_DEVICE_CALLS_H_

#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/cuda/cuda_api.h"
#include "allocator/cuda/current_device.h"

namespace stratalloc {

inline cudaStream_t ToCuda(StreamId stream) {
  return reinterpret_cast<cudaStream_t>(StreamValue(stream));
}
inline bool IsMade(StreamId stream) {
  const cudaStream_t made = ToCuda(stream);
  return made != nullptr && made != cudaStreamLegacy &&
         made != cudaStreamPerThread;
}
// The device of `stream`, where nothing else is said `index`.
inline DeviceIndex DeviceOf(StreamId stream, DeviceIndex index) {
  return IsElsewhere(stream) ? DeviceElsewhere(stream) : index;
}
inline cudaEvent_t ToCuda(EventId event) {
  return reinterpret_cast<cudaEvent_t>(Raw(event));
}
inline CUmemLocation LocationOf(DeviceIndex index) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = static_cast<int>(index);
  return location;
}
inline CUmemAllocationProp PinnedOn(DeviceIndex index) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = LocationOf(index);
  return properties;
}

}  // namespace stratalloc

#define STRATALLOC_CUDA(call, name)                     \
  do {                                                  \
    if (cudaError_t e = (call); e != cudaSuccess)       \
      return tl::unexpected(CudaError(*api_, name, e)); \
  } while (false)
#define STRATALLOC_DRIVER(call, name)                     \
  do {                                                    \
    if (CUresult e = (call); e != CUDA_SUCCESS)           \
      return tl::unexpected(DriverError(*api_, name, e)); \
  } while (false)

// Makes the device current for the rest of the function, as `on`.
#define STRATALLOC_ON_DEVICE(index)     \
  const CurrentDevice on(*api_, index); \
  if (!on) return tl::unexpected(on.error())
// What was made says itself of which device it is; a default stream does not.
#define STRATALLOC_ON_DEVICE_FOR(stream, index) \
  const CurrentDevice on(*api_, index);         \
  if (!on && !IsMade(stream)) return tl::unexpected(on.error())

#endif  // STRATALLOC_ALLOCATOR_CUDA_DEVICE_CALLS_H_
