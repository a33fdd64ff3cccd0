// SPDX-License-Identifier: Apache-2.0
#include "accounting/site_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <thread>

namespace stratalloc {
namespace {

TEST(SiteSamplerTest, LargeBlocksAreAlwaysSampled) {
  SiteSampler sampler(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(sampler.Take(kSiteInterval));
    EXPECT_TRUE(sampler.Take(100 * kMiB));
  }
}

// 1 - exp(-s / interval) of them, for each size, also beside large ones, which
// do not count down: five standard deviations.
TEST(SiteSamplerTest, SmallBlocksAreSampledByTheirBytes) {
  for (const Bytes size : {Bytes{512}, Bytes{4096}, kSiteInterval / 2}) {
    for (const bool beside_large : {false, true}) {
      SiteSampler sampler(size);
      constexpr int kMallocs = 1'000'000;
      int sampled = 0;
      for (int i = 0; i < kMallocs; ++i) {
        if (beside_large) sampler.Take(64 * kMiB);
        sampled += sampler.Take(size) ? 1 : 0;
      }
      const double p = 1 - std::exp(-static_cast<double>(size) /
                                    static_cast<double>(kSiteInterval));
      EXPECT_NEAR(sampled, p * kMallocs, 5 * std::sqrt(p * (1 - p) * kMallocs))
          << size << (beside_large ? " beside large ones" : "");
    }
  }
}

// A loop of 64 mallocs whose bytes are the interval: every place has its turn,
// where a fixed countdown would always take the same one.
TEST(SiteSamplerTest, NoPatternKeepsStepWithIt) {
  SiteSampler sampler(3);
  std::set<int> places;
  for (int loop = 0; loop < 2000; ++loop) {
    for (int place = 0; place < 64; ++place) {
      if (sampler.Take(kSiteInterval / 64)) places.insert(place);
    }
  }
  EXPECT_EQ(places.size(), 64u);
}

TEST(SiteSamplerTest, ThreadsHaveTheirOwn) {
  SiteSampler* other = nullptr;
  std::thread thread([&] { other = &SiteSampler::ThisThread(); });
  SiteSampler* const mine = &SiteSampler::ThisThread();
  thread.join();
  EXPECT_NE(mine, other);
}

}  // namespace
}  // namespace stratalloc
