// SPDX-License-Identifier: Apache-2.0
// Handles that lie side by side leave with one unmap and return with few
// grants, because the driver takes tens of microseconds for either; and where a
// part of such a run fails the rest of it is as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr int kInvalidValue = 1, kNotReady = 600;
constexpr int kRun = 16;

class EngineRunsTest : public EngineTest {
 protected:
  void SetUp() override { Open({}); }
  // Calls of `function` while `f` runs.
  template <typename F>
  static long CallsIn(const char* function, F&& f) {
    const long before = cudasim_calls(function);
    f();
    return cudasim_calls(function) - before;
  }
};

TEST_F(EngineRunsTest, OneUnmapForARun) {
  const auto layers = Layers(kRun);
  EXPECT_EQ(CallsIn("cuMemUnmap", [&] { EXPECT_EQ(Evict(), kRun * kHandle); }),
            1);
  EXPECT_EQ(cudasim_live_mappings(), 0);
  ExpectLayers(layers);
  FreeAll(layers);
}

// The first alone, then as many as have been begun: 1, 1, 2, 4, 8. Copies run
// while the next ones are mapped.
TEST_F(EngineRunsTest, FewGrantsForARun) {
  const auto layers = Layers(kRun);
  Evict();
  EXPECT_EQ(
      CallsIn("cuMemSetAccess", [&] { EXPECT_EQ(Restore(), kRun * kHandle); }),
      5);
  ExpectLayers(layers);
  FreeAll(layers);
}

// In the time of the calling thread, on a card with typical costs of calls: a
// mapping is taken away once and made and granted once, for this device alone.
TEST_F(EngineRunsTest, AMappingIsPaidForOnce) {
  ASSERT_EQ(cudasim_set_card(0, "h200"), 0);
  cudasim_set_capacity(0, 64 * kMiB + cudasim_context_bytes(0));
  const auto layers = Layers(kRun);
  // The first one pins the host's memory, for good.
  EXPECT_EQ(Evict(), kRun * kHandle);
  EXPECT_EQ(Restore(), kRun * kHandle);
  const double before = cudasim_virtual_total("calls_ns");
  EXPECT_EQ(Evict(), kRun * kHandle);
  EXPECT_EQ(Restore(), kRun * kHandle);
  const double spent = cudasim_virtual_total("calls_ns") - before;
  const double each =
      cudasim_card_figure(0, "unmap_ns") + cudasim_card_figure(0, "grant_ns");
  EXPECT_GT(spent, kRun * each);
  EXPECT_LT(spent, 1.5 * kRun * each)
      << "copies, events and checksums included";
  ExpectLayers(layers);
  FreeAll(layers);
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
}

TEST_F(EngineRunsTest, WhatIsFreeInBetweenEndsARun) {
  const auto one = Layers(2), gap = Layers(1), two = Layers(4);
  FreeAll(gap);
  EXPECT_EQ(CallsIn("cuMemUnmap", [&] { EXPECT_EQ(Evict(), 6 * kHandle); }), 2);
  // 1, 1, and 2, 2 beyond the gap.
  EXPECT_EQ(
      CallsIn("cuMemSetAccess", [&] { EXPECT_EQ(Restore(), 6 * kHandle); }), 4);
  ExpectLayers(one);
  ExpectLayers(two);
  FreeAll(one);
  FreeAll(two);
}

TEST_F(EngineRunsTest, WhatIsFreedWhileAwayEndsARun) {
  auto layers = Layers(8);
  Evict();
  Free(layers.back());
  layers.pop_back();
  Free(layers.front());
  EXPECT_EQ(Restore(), 6 * kHandle);
  for (std::size_t i = 1; i < layers.size(); ++i) {
    ExpectReads(layers[i], kHandle, i + 1);
    Free(layers[i]);
  }
  EXPECT_EQ(rig_->Check(), "");
}

// The copies of a run of four: whichever fails, what came before it is here,
// and the others are away, whole.
TEST_F(EngineRunsTest, ACopyThatFailsLeavesTheRestOfItsRunAway) {
  const auto layers = Layers(8);
  for (int nth = 1; nth <= 8; ++nth) {
    SCOPED_TRACE(nth);
    EXPECT_EQ(Evict(), 8 * kHandle);
    ASSERT_EQ(cudasim_fail("cudaMemcpyAsync", nth, kInvalidValue, 0), 0);
    const Result<Bytes> moved = rig_->engine().Restore(rig_->device(), {});
    cudasim_clear_faults();
    ASSERT_FALSE(moved.has_value());
    EXPECT_THAT(moved.error().message, HasSubstr("from host: "));
    EXPECT_EQ(cudasim_live_mappings(), nth - 1);
    EXPECT_EQ(rig_->Check(), "");
    ExpectLayers(layers);
  }
  FreeAll(layers);
}

TEST_F(EngineRunsTest, AGrantThatFailsLeavesItsRunAway) {
  const auto layers = Layers(8);
  EXPECT_EQ(Evict(), 8 * kHandle);
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 3, kInvalidValue, 0), 0);
  EXPECT_FALSE(rig_->engine().Restore(rig_->device(), {}).has_value());
  cudasim_clear_faults();
  EXPECT_EQ(cudasim_live_mappings(), 2);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineRunsTest, ADriverThatIsNotReadyIsAskedForTheRunAgain) {
  const auto layers = Layers(8);
  EXPECT_EQ(Evict(), 8 * kHandle);
  for (const char* call : {"cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    ASSERT_EQ(cudasim_fail(call, 4, kNotReady, 0), 0);
    EXPECT_EQ(Restore(), 8 * kHandle);
    cudasim_clear_faults();
    ExpectLayers(layers);
    EXPECT_EQ(Evict(), 8 * kHandle);
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
