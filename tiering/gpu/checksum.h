// SPDX-License-Identifier: Apache-2.0
// The checksum of device memory, computed on the device: 2 MiB cost a kernel of
// a few microseconds instead of a copy over PCIe. The engine takes one when a
// host copy is made and one before that copy is trusted again (design: "clean
// or dirty").
//
// Results are made in memory of the kernel's own module and copied to the host:
// nothing is allocated, and no kernel writes memory of the host, which it
// cannot under WSL2. A driver that loads code when it is first launched finds
// no memory for it on a full card, so Load launches the kernel once.
//
// Thread-safety: one caller at a time per device: the results of all copies of
// this are the same words.
// Fails: Load with the driver's error (no code for this GPU, or no host twin on
// the simulated device), or if the kernel computes something else than the
// host; Launch with kDevice, or kInvalidArgument.
// Lifetime: the kernel lives as long as the process; copies are cheap.
#ifndef STRATALLOC_TIERING_GPU_CHECKSUM_H_
#define STRATALLOC_TIERING_GPU_CHECKSUM_H_

#include <cstdint>
#include <span>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/cuda/device.h"
#include "tiering/gpu/checksum_host.h"

namespace stratalloc {

class DeviceChecksum {
 public:
  // Aligned to 16, whole words.
  struct Range {
    Address address;
    Bytes bytes;
  };
  static constexpr std::size_t kMost = 64;  // ranges at a time

  // Waits for `stream`, on which the kernel is tried; `word` is registered host
  // memory.
  static Result<DeviceChecksum> Load(const Device& device, StreamId stream,
                                     std::uint64_t* word);

  // results[i], in registered host memory, becomes the checksum of ranges[i],
  // in the order of `stream`: the caller reads it once that has been waited
  // for. Never waits. At most kMost ranges.
  Status Launch(std::span<const Range> ranges, std::uint64_t* results,
                StreamId stream) const;

 private:
  DeviceChecksum(const Device& device, void* kernel, Address results)
      : device_(device), kernel_(kernel), results_(results) {}

  Device device_;
  void* kernel_;
  Address results_;  // kMost words, then two that stay zero
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_GPU_CHECKSUM_H_
