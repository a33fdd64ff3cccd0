// SPDX-License-Identifier: Apache-2.0
//
// contexts.h: the handles of contexts, which primary contexts live, and whether
// the driver was initialised. There is one context per device, the primary one,
// and its handle is the device's number in disguise.
//
// The driver refuses everything before cuInit and most work without a current
// context; the runtime does both by itself at its first call. When the process
// ends the driver shuts down before whatever was made ahead of its
// initialisation is destroyed, and answers kDeinitialized from then on. A
// program the device is linked into is born initialised, with device 0's
// context current on every thread: it has nothing to prove about loading CUDA.
//
// Thread-safety: all functions, without the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTEXTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTEXTS_H_

#include <cstdint>

namespace cudasim {

inline constexpr uint64_t kFirstContext = 0xC70000000010;

inline uint64_t ContextNumber(int device) {
  return kFirstContext + 16 * static_cast<uint64_t>(device);
}

// -1 for anything that is no context of one of `devices` devices.
inline int DeviceOfContext(uint64_t context, int devices) {
  const uint64_t offset = context - kFirstContext;
  if (offset % 16 != 0 || offset / 16 >= static_cast<uint64_t>(devices)) {
    return -1;
  }
  return static_cast<int>(offset / 16);
}

void InitializeDriver();
bool IsDriverInitialized();

// By itself at exit, and where a test says so. Everything a question can be
// asked of is gone then: contexts, memory, streams.
void ShutDownDriver();
bool IsDriverDown();
// Of a test that went on.
void RaiseDriverForTesting();

// The runtime uses the device's primary context; it keeps it to the end. What
// a context takes of the device's memory is Simulator::OpenContext's affair.
void KeepPrimaryContext(int device);
void RetainPrimaryContext(int device);
// False if nobody holds it.
bool ReleasePrimaryContext(int device);
bool IsPrimaryContextActive(int device);

// By linked_in.cc alone.
void BeLinkedIn();
bool IsLinkedIn();

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTEXTS_H_
