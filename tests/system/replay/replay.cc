// SPDX-License-Identifier: Apache-2.0
#include "tests/system/replay/replay.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <time.h>

#include <cstdio>
#include <exception>
#include <vector>

namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// Of this thread alone: what else the machine does is not counted.
double ThreadNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec);
}

void Sample(CUDAAllocator* allocator, c10::DeviceIndex device,
            replay_peaks* peaks) {
  const auto stats = allocator->getDeviceStats(device);
  const int64_t reserved = stats.reserved_bytes[0].current;
  const int64_t allocated = stats.allocated_bytes[0].current;
  if (allocated > peaks->allocated ||
      (allocated == peaks->allocated &&
       reserved > peaks->reserved_at_allocated)) {
    peaks->allocated = allocated;
    peaks->reserved_at_allocated = reserved;
  }
  if (reserved > peaks->reserved ||
      (reserved == peaks->reserved &&
       allocated < peaks->allocated_at_reserved)) {
    peaks->reserved = reserved;
    peaks->allocated_at_reserved = allocated;
  }
}

void Run(const replay_op* ops, uint64_t count, uint64_t blocks, int streams,
         replay_peaks* peaks, double* nanoseconds) {
  CUDAAllocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const c10::DeviceIndex device = c10::cuda::current_device();
  const CUDAStream before = c10::cuda::getCurrentCUDAStream(device);
  std::vector<CUDAStream> used = {c10::cuda::getDefaultCUDAStream(device)};
  while (static_cast<int>(used.size()) < streams) {
    used.push_back(c10::cuda::getStreamFromPool(false, device));
  }
  std::vector<c10::DataPtr> data(blocks);
  if (peaks != nullptr) *peaks = replay_peaks{};
  int current = 0;
  c10::cuda::setCurrentCUDAStream(used[0]);
  const double start = ThreadNanoseconds();
  for (uint64_t i = 0; i < count; ++i) {
    const replay_op& op = ops[i];
    switch (op.kind) {
      case 0:
        if (op.stream != current) {
          current = op.stream;
          c10::cuda::setCurrentCUDAStream(used[current]);
        }
        data[op.block] = allocator->allocate(op.size);
        if (peaks != nullptr) Sample(allocator, device, peaks);
        break;
      case 1:
        data[op.block].clear();
        break;
      case 2:
        allocator->recordStream(data[op.block], used[op.stream]);
        break;
      default:
        allocator->emptyCache();
    }
  }
  *nanoseconds = ThreadNanoseconds() - start;
  c10::cuda::setCurrentCUDAStream(before);
}

}  // namespace

int replay_run(const replay_op* ops, uint64_t count, uint64_t blocks,
               int streams, replay_peaks* peaks, double* nanoseconds,
               char* message, int bytes) {
  try {
    Run(ops, count, blocks, streams, peaks, nanoseconds);
    return 0;
  } catch (const c10::Error& error) {
    std::snprintf(message, bytes, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(message, bytes, "%s", error.what());
  }
  return 1;
}
