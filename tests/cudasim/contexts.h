// SPDX-License-Identifier: Apache-2.0
//
// contexts.h: the handles of contexts. There is one context per device, the
// primary one, and its handle is the device's number in disguise.

#ifndef STRATALLOC_TESTS_CUDASIM_CONTEXTS_H_
#define STRATALLOC_TESTS_CUDASIM_CONTEXTS_H_

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

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_CONTEXTS_H_
