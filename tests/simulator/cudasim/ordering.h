// SPDX-License-Identifier: Apache-2.0
//
// ordering.h: what orders work: streams, events, waits and synchronisation, as
// both the driver and the runtime offer them.
//
// Thread-safety: take the simulator's lock themselves.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_ORDERING_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_ORDERING_H_

#include <cstdint>
#include <functional>

#include "tests/simulator/cudasim/status.h"
#include "tests/simulator/cudasim/streams.h"

namespace cudasim {

struct Event;

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
// `external` (of this and of EventRecord): in a capture, a node that waits for
// (or records) the event at every launch, not an edge.
Status StreamWaitEvent(uint64_t stream, uint64_t event, bool external = false);
Status StreamInfo(uint64_t handle, unsigned* flags, int* priority, int* device);
// `function` runs when the stream gets there, without any lock, and may not
// call CUDA. After an error of the device a host function is left out, as on
// CUDA; a callback runs all the same and is told the error. A capture takes
// host functions, no callbacks.
Status StreamCall(uint64_t stream, void (*function)(void*), void* argument);
Status StreamCallback(uint64_t stream, std::function<void(Status)> callback);
// Calls it as a host function of a stream is called. No lock may be held.
void RunOnHost(const std::function<void(Status)>& callback, Status status);

Status EventCreate(unsigned flags, uint64_t* handle);
Status EventDestroy(uint64_t handle);
Status EventRecord(uint64_t event, uint64_t stream, bool external = false);
// The event stands for the stream's past from now on; the stream's next
// operation comes after the event. REQUIRE: the lock.
void RecordNow(Lock& lock, Event* event, Stream* stream);
void WaitNow(Stream* stream, const Event* event);
Status EventQuery(uint64_t event);
Status EventSynchronize(uint64_t event);
Status EventElapsed(float* milliseconds, uint64_t start, uint64_t end);

Status DeviceSynchronize();

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_ORDERING_H_
