// SPDX-License-Identifier: Apache-2.0
//
// ordering.h: what orders work: streams, events, waits and synchronisation, as
// both the driver and the runtime offer them.
//
// Thread-safety: take the simulator's lock themselves.

#ifndef STRATALLOC_TESTS_CUDASIM_ORDERING_H_
#define STRATALLOC_TESTS_CUDASIM_ORDERING_H_

#include <cstdint>
#include <functional>

#include "tests/cudasim/status.h"

namespace cudasim {

// The values of cudaStreamNonBlocking, cudaEventDisableTiming and
// cudaEventInterprocess.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventInterprocess = 4;

Status StreamCreate(unsigned flags, int priority, uint64_t* handle);
Status StreamDestroy(uint64_t handle);
Status StreamSynchronize(uint64_t handle);
// kNotReady while something is left to do.
Status StreamQuery(uint64_t handle);
Status StreamWaitEvent(uint64_t stream, uint64_t event);
Status StreamInfo(uint64_t handle, unsigned* flags, int* priority, int* device);
// `function` runs when the stream gets there, without any lock, and may not
// call CUDA. After an error of the device a host function is left out, as on
// CUDA; a callback runs all the same and is told the error.
Status StreamCall(uint64_t stream, void (*function)(void*), void* argument);
Status StreamCallback(uint64_t stream, std::function<void(Status)> callback);

Status EventCreate(unsigned flags, uint64_t* handle);
Status EventDestroy(uint64_t handle);
Status EventRecord(uint64_t event, uint64_t stream);
Status EventQuery(uint64_t event);
Status EventSynchronize(uint64_t event);
Status EventElapsed(float* milliseconds, uint64_t start, uint64_t end);

Status DeviceSynchronize();

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_ORDERING_H_
