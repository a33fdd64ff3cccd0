// SPDX-License-Identifier: Apache-2.0
#include "tiering/gpu/checksum.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/base/check.h"
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

Result<DeviceChecksum> DeviceChecksum::Load(const Device& device,
                                            StreamId stream,
                                            std::uint64_t* word) {
  const auto loaded = [&]() -> Result<DeviceChecksum> {
    STRATALLOC_ASSIGN_OR_RETURN(
        void* const kernel,
        device.LoadKernel(checksum_kernels, "stratalloc_checksum"));
    STRATALLOC_ASSIGN_OR_RETURN(
        const Address results,
        device.LoadVariable(checksum_kernels, "stratalloc_checksum_results"));
    return DeviceChecksum(device, kernel, results);
  }();
  if (!loaded) {
    return Fail(
        loaded.error().code,
        "the checksum kernel cannot be loaded: " + loaded.error().message +
            ". It has code for compute capability 7.5 and newer");
  }
  const std::uint64_t zeros[2] = {};
  const Range tried{loaded->results_ + kMost * sizeof(std::uint64_t),
                    sizeof zeros};
  Status ran = loaded->Launch({&tried, 1}, word, stream);
  if (ran) ran = device.SynchronizeStream(stream);
  if (!ran) {
    return Fail(ran.error().code, "the checksum kernel cannot be launched: " +
                                      ran.error().message);
  }
  if (*word != ChecksumOnHost(zeros, sizeof zeros)) {
    return Fail(ErrorCode::kUnsupported,
                "the checksum kernel computes other numbers than the host");
  }
  return *loaded;
}

Status DeviceChecksum::Launch(std::span<const Range> ranges,
                              std::uint64_t* results, StreamId stream) const {
  STRATALLOC_CHECK(ranges.size() <= kMost, "more ranges than results");
  for (const Range& range : ranges) {
    if (range.address % 16 == 0 && range.bytes % sizeof(std::uint64_t) == 0) {
      continue;
    }
    return Fail(ErrorCode::kInvalidArgument,
                "a checksum is taken over whole words from an address aligned "
                "to 16 bytes, not " +
                    std::to_string(range.bytes) + " bytes at " +
                    std::to_string(range.address));
  }
  if (ranges.empty()) return {};
  const Bytes bytes = ranges.size() * sizeof(std::uint64_t);
  STRATALLOC_RETURN_IF_ERROR(device_.FillWithZeros(results_, bytes, stream));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].bytes == 0) continue;
    const auto blocks = static_cast<unsigned>(
        std::min(kMostBlocks,
                 RoundUp(ranges[i].bytes, kBytesPerBlock) / kBytesPerBlock));
    Address data = ranges[i].address;
    std::uint64_t words = ranges[i].bytes / sizeof(std::uint64_t);
    Address result = results_ + i * sizeof(std::uint64_t);
    void* arguments[] = {&data, &words, &result};
    STRATALLOC_RETURN_IF_ERROR(
        device_.Launch(kernel_, blocks, kThreads, stream, arguments));
  }
  return device_.CopyToHost(results, results_, bytes, stream);
}

}  // namespace stratalloc
