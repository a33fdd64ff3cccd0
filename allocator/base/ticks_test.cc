// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/ticks.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace stratalloc {
namespace {

// Two looks at both clocks around the same work: whatever it took, the ticks
// say the same as the nanoseconds, but for what a preemption between the two
// clocks' looks takes; so the best of many tries is compared.
TEST(Ticks, AreTheNanosecondsOfTheSteadyClock) {
  double best = 1;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t ticks = NowTicks();
    const std::int64_t ns = NowNs();
    std::int64_t until = ns;
    while (until - ns < 1'000'000) until = NowNs();
    const double spent = static_cast<double>(NowTicks() - ticks) * NsPerTick();
    const double ratio = spent / static_cast<double>(until - ns);
    best = std::min(best, ratio > 1 ? ratio - 1 : 1 - ratio);
  }
  EXPECT_LT(best, 0.01);
}

}  // namespace
}  // namespace stratalloc
