// SPDX-License-Identifier: Apache-2.0
#include "tiering/gpu/checksum.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tiering/gpu/checksum_kernels.h"

namespace stratalloc {
namespace {

constexpr unsigned kThreads = 256;  // checksum.cu is compiled for this many
// Two pairs of words per thread: enough reads in flight to hide their latency.
constexpr Bytes kBytesPerBlock = kThreads * 2 * 16;
// About eight blocks for each multiprocessor of today's largest GPU; more would
// only add atomics.
constexpr Bytes kMostBlocks = 1024;

}  // namespace

Result<DeviceChecksum> DeviceChecksum::Load(const Device& device) {
  Result<void*> kernel =
      device.LoadKernel(checksum_kernels, "stratalloc_checksum");
  if (!kernel) {
    return Fail(
        kernel.error().code,
        "the checksum kernel cannot be loaded: " + kernel.error().message +
            ". It has code for compute capability 8.0 and newer");
  }
  return DeviceChecksum(device, *kernel);
}

Status DeviceChecksum::Launch(Address data, Bytes bytes, std::uint64_t* result,
                              StreamId stream) const {
  if (data % 16 != 0 || bytes % sizeof(std::uint64_t) != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "a checksum is taken over whole words from an address aligned "
                "to 16 bytes, not " +
                    std::to_string(bytes) + " bytes at " +
                    std::to_string(data));
  }
  if (bytes == 0) return {};
  const auto blocks = static_cast<unsigned>(
      std::min(kMostBlocks, RoundUp(bytes, kBytesPerBlock) / kBytesPerBlock));
  std::uint64_t words = bytes / sizeof(std::uint64_t);
  void* arguments[] = {&data, &words, &result};
  return device_.Launch(kernel_, blocks, kThreads, stream, arguments);
}

}  // namespace stratalloc
