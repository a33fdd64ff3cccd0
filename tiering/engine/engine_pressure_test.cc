// SPDX-License-Identifier: Apache-2.0
// The end of pressure: once nothing is evicted and nothing was refused for a
// while, the thresholds do not act any more.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

constexpr int kFit = 16;

class EnginePressureTest : public EngineTest {
 protected:
  void OpenRig(bool from_the_start = false) {
    Rig::Options options;
    options.capacity = kFit * kHandle;
    options.host_budget = 64 * kMiB;
    options.background = true;
    options.under_pressure = from_the_start;
    options.calm_ns = 1;
    Open(options);
  }
  bool UnderPressure() { return rig_->engine().UnderPressure(DeviceIndex{0}); }
  // A use of `layer`, which wakes the mover; what it then looks at is seen.
  void UseAndSettle(Address layer, std::uint64_t seed) {
    ExpectReads(layer, kHandle, seed);
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  }
};

// As a search for the largest batch that fits.
TEST_F(EnginePressureTest, ProbeThatIsOverEndsPressure) {
  OpenRig();
  const auto layers = Layers(kFit - 2);
  const Address probe = Malloc(6 * kHandle);
  EXPECT_TRUE(UnderPressure());
  EXPECT_GT(Counters().evicted_handles, 0u);
  Free(probe);
  for (int i = 0; i < 20; ++i) UseAndSettle(layers.back(), kFit - 2);
  EXPECT_TRUE(UnderPressure()) << "pages are evicted still";
  ExpectLayers(layers);
  EXPECT_TRUE(Eventually([&] {
    UseAndSettle(layers[0], 1);
    return !UnderPressure();
  }));
  // The next one begins again.
  const Address again = Malloc(6 * kHandle);
  EXPECT_TRUE(UnderPressure());
  Free(again);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EnginePressureTest, PressureThatWasAskedForStays) {
  OpenRig(/*from_the_start=*/true);
  const auto layers = Layers(kFit - 2);
  Evict();
  ExpectLayers(layers);
  for (int i = 0; i < 20; ++i) UseAndSettle(layers[0], 1);
  EXPECT_TRUE(UnderPressure());
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
