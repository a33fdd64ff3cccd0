// SPDX-License-Identifier: Apache-2.0
#include <c10/core/Allocator.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "python_shim/torch_bridge/entry_point.h"
#include "python_shim/torch_bridge/install.h"
#include "python_shim/torch_bridge/torch_allocator.h"

namespace stratalloc {
namespace {

// One round: what a tensor's storage does, allocate() and the deleter, with
// nothing between the two. The block is reused every time, so this is the
// cached path.
double PairNanoseconds(c10::Allocator* allocator, uint64_t size, int pairs) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < pairs; ++i) {
    const c10::DataPtr data = allocator->allocate(size);
  }
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  return taken.count() / pairs;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

}  // namespace
}  // namespace stratalloc

int stratalloc_torch_native_pair_ns(uint64_t size, int pairs, int rounds,
                                    double* ours, double* native, char* message,
                                    int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    c10::Allocator* first = stratalloc::BridgeAllocator();
    c10::Allocator* second = stratalloc::NativeAllocator();
    TORCH_CHECK(pairs > 0 && rounds > 0, "pairs and rounds must be positive");
    TORCH_CHECK(second != nullptr, "the native allocator was not found");
    // The first pair makes the segment.
    stratalloc::PairNanoseconds(first, size, 1);
    stratalloc::PairNanoseconds(second, size, 1);
    std::vector<double> first_times, second_times;
    for (int round = 0; round < rounds; ++round) {
      first_times.push_back(stratalloc::PairNanoseconds(first, size, pairs));
      second_times.push_back(stratalloc::PairNanoseconds(second, size, pairs));
    }
    *ours = stratalloc::Median(first_times);
    *native = stratalloc::Median(second_times);
  });
}
