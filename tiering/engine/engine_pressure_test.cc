// SPDX-License-Identifier: Apache-2.0
// The end of pressure: once nothing is evicted, and nothing was refused and
// nothing left for a while, the thresholds do not act any more.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

constexpr int kFit = 16;
constexpr std::int64_t kCalm = 1000;

class EnginePressureTest : public EngineTest {
 protected:
  void OpenRig(bool from_the_start = false) {
    Rig::Options options;
    options.capacity = kFit * kHandle;
    options.host_budget = 64 * kMiB;
    options.background = true;
    options.under_pressure = from_the_start;
    options.calm_ns = kCalm;
    options.now_ns = [this] {
      looks_.fetch_add(1);
      return now_.load();
    };
    Open(options);
  }
  bool UnderPressure() { return rig_->engine().UnderPressure(DeviceIndex{0}); }
  // A use of `layer`, which wakes the mover, until that has looked at the time.
  void UseUntilALook(Address layer, std::uint64_t seed) {
    const long before = looks_.load();
    EXPECT_TRUE(Eventually([&] {
      ExpectReads(layer, kHandle, seed);
      return looks_.load() > before + 1 || !UnderPressure();
    }));
  }

  std::atomic<std::int64_t> now_{1};
  std::atomic<long> looks_{0};
};

// As a search for the largest batch that fits.
TEST_F(EnginePressureTest, ProbeThatIsOverEndsPressure) {
  OpenRig();
  const auto layers = Layers(kFit - 2);
  const Address probe = Malloc(6 * kHandle);
  EXPECT_TRUE(UnderPressure());
  EXPECT_GT(Counters().evicted_handles, 0u);
  Free(probe);
  for (int i = 0; i < 3; ++i) {
    UseUntilALook(layers.back(), kFit - 2);
    now_ += 2 * kCalm;
  }
  EXPECT_TRUE(UnderPressure()) << "pages are evicted still";
  ExpectLayers(layers);
  UseUntilALook(layers[0], 1);
  now_ += kCalm / 2;
  UseUntilALook(layers[0], 1);
  EXPECT_TRUE(UnderPressure()) << "not for long";
  now_ += 2 * kCalm;
  UseUntilALook(layers[0], 1);
  EXPECT_FALSE(UnderPressure());
  EXPECT_TRUE(Eventually([&] { return rig_->engine().HostReserved() == 0; }))
      << "pinned for copies that nothing needs";
  ExpectLayers(layers);
  // The next one begins again.
  const Address again = Malloc(6 * kHandle);
  EXPECT_TRUE(UnderPressure());
  Free(again);
  ExpectLayers(layers);
  FreeAll(layers);
}

// As in a step that fits at its end alone.
TEST_F(EnginePressureTest, PagesThatLeaveKeepPressure) {
  OpenRig();
  const auto layers = Layers(kFit - 2);
  Free(Malloc(6 * kHandle));
  ExpectLayers(layers);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(EvictOnly(layers[1], kHandle), kHandle);
    ExpectReads(layers[1], kHandle, 2);
    UseUntilALook(layers[0], 1);
    now_ += kCalm * 3 / 4;
  }
  EXPECT_TRUE(UnderPressure());
  FreeAll(layers);
}

TEST_F(EnginePressureTest, PressureThatWasAskedForStays) {
  OpenRig(/*from_the_start=*/true);
  const auto layers = Layers(kFit - 2);
  Evict();
  ExpectLayers(layers);
  for (int i = 0; i < 3; ++i) {
    now_ += 2 * kCalm;
    for (int use = 0; use < 50; ++use) ExpectReads(layers[0], kHandle, 1);
  }
  EXPECT_TRUE(UnderPressure());
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
