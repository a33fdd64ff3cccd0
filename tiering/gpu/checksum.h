// SPDX-License-Identifier: Apache-2.0
// The checksum of device memory, computed on the device: 2 MiB cost a kernel of
// a few microseconds instead of a copy over PCIe. The engine takes one when a
// host copy is made and one before that copy is trusted again (design: "clean
// or dirty").
//
// Thread-safety: immutable after Load; Launch from any thread.
// Fails: Load with the driver's error (no code for this GPU, or no host twin on
// the simulated device); Launch with kDevice, or kInvalidArgument.
// Lifetime: the kernel lives as long as the process; copies are cheap.
#ifndef STRATALLOC_TIERING_GPU_CHECKSUM_H_
#define STRATALLOC_TIERING_GPU_CHECKSUM_H_

#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/device/device.h"
#include "tiering/gpu/checksum_host.h"

namespace stratalloc {

class DeviceChecksum {
 public:
  static Result<DeviceChecksum> Load(const Device& device);

  // Adds the checksum of [data, data + bytes) to *result, in the order of
  // `stream`; never waits. `data` is aligned to 16, `bytes` a multiple of 8.
  // The caller has zeroed *result, which lies in registered host memory or on
  // the device, and reads it after an event recorded behind this call.
  Status Launch(Address data, Bytes bytes, std::uint64_t* result,
                StreamId stream) const;

 private:
  DeviceChecksum(const Device& device, void* kernel)
      : device_(device), kernel_(kernel) {}

  Device device_;
  void* kernel_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_GPU_CHECKSUM_H_
