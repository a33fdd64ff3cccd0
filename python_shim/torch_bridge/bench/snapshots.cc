// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/snapshots.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/bench/both_allocators.h"

namespace stratalloc {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// `blocks` blocks of 512 bytes; nanoseconds of each of `rounds` snapshots.
std::vector<double> SnapshotNanoseconds(CUDAAllocator* allocator, int blocks,
                                        int rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<c10::DataPtr> held;
  held.reserve(static_cast<size_t>(blocks));
  for (int i = 0; i < blocks; ++i) held.push_back(allocator->allocate(512));
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const Clock::time_point start = Clock::now();
    const auto snapshot = allocator->snapshot({0, 0}, true);
    const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
    size_t seen = 0;
    for (const auto& segment : snapshot.segments) seen += segment.blocks.size();
    TORCH_CHECK(seen >= held.size(), "a snapshot of ", seen, " blocks");
    times.push_back(taken.count());
  }
  return times;
}

}  // namespace
}  // namespace stratalloc

int stratalloc_bench_snapshot_ns(int blocks, int rounds, double* ours,
                                 double* native, char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    TORCH_CHECK(blocks > 0 && rounds > 0, "blocks and rounds must be positive");
    auto* second = stratalloc::AllocatorFor(/*native=*/1);
    const auto first = stratalloc::SnapshotNanoseconds(
        stratalloc::AllocatorFor(/*native=*/0), blocks, rounds);
    std::copy(first.begin(), first.end(), ours);
    const auto other = stratalloc::SnapshotNanoseconds(second, blocks, rounds);
    std::copy(other.begin(), other.end(), native);
  });
}
