// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/list_room.h"

#include <gtest/gtest.h>

#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

// Lists whose elements have the same number of accesses each.
class ListRoomTest : public EngineTest {
 protected:
  void OpenOf(Bytes capacity) {
    Rig::Options options;
    options.capacity = capacity;
    Open(options);
  }
  bool Fits(const std::vector<Access>& accesses, Bytes results = 0) {
    return FitsAsItIs(rig_->device(), accesses, results);
  }
  std::size_t Next(const std::vector<Access>& accesses, std::size_t first = 0,
                   Bytes result = 0, int per_element = 1) {
    std::vector<int> ends;
    for (int end = per_element; end <= static_cast<int>(accesses.size());
         end += per_element) {
      ends.push_back(end);
    }
    const std::vector<Bytes> results(ends.size(), result);
    return NextSlice(rig_->device(), {accesses, ends, results}, first);
  }
  static std::vector<Access> Of(const std::vector<Address>& layers) {
    std::vector<Access> accesses;
    for (Address layer : layers) accesses.push_back({layer, kHandle, true});
    return accesses;
  }
};

TEST_F(ListRoomTest, WhatIsOnTheDeviceFitsAsItIs) {
  OpenOf(64 * kMiB);
  const auto layers = Layers(20);
  EXPECT_TRUE(Fits(Of(layers)));
  // 40 of 64 MiB are taken.
  EXPECT_TRUE(Fits(Of(layers), 24 * kMiB));
  EXPECT_FALSE(Fits(Of(layers), 25 * kMiB));
  // Another's absence is none of its business.
  EvictOnly(layers[19], kHandle);
  std::vector<Access> others = Of(layers);
  EXPECT_FALSE(Fits(others));
  others.pop_back();
  EXPECT_TRUE(Fits(others));
  FreeAll(layers);
}

TEST_F(ListRoomTest, ASliceTakesAQuarterOfWhatCanLeave) {
  OpenOf(64 * kMiB);
  const auto layers = Layers(20);
  Evict();
  EXPECT_EQ(Next(Of(layers)), 8u);  // 16 MiB
  EXPECT_EQ(Next(Of(layers), 3), 8u);
  EXPECT_EQ(Next(Of(layers), 18), 2u);
  // Results of the same size.
  EXPECT_EQ(Next(Of(layers), 0, kHandle), 4u);
  // Never nothing.
  EXPECT_EQ(Next(Of(layers), 0, 100 * kMiB), 1u);
  FreeAll(layers);
}

TEST_F(ListRoomTest, SliceTakesEightPagesAtMost) {
  OpenOf(128 * kMiB);
  const auto layers = Layers(60);
  Evict();
  EXPECT_EQ(Next(Of(layers)), 8u);  // a quarter of the device is 16 pages
  FreeAll(layers);
}

TEST_F(ListRoomTest, WhatCannotLeaveTakesRoom) {
  OpenOf(64 * kMiB);
  const auto layers = Layers(20);
  Evict();
  const Address stays =
      Malloc(16 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_EQ(Next(Of(layers)), 6u);  // of 48 MiB
  std::vector<Access> used = Of(layers);
  used.resize(8);
  {
    Busy busy(rig_->engine(), used);
    EXPECT_EQ(Next(Of(layers), 8), 4u);  // of 32 MiB
  }
  Free(stays);
  EXPECT_EQ(Next(Of(layers), 8), 8u);
  FreeAll(layers);
}

TEST_F(ListRoomTest, AnElementThatWillNotFitIsFoundBefore) {
  OpenOf(32 * kMiB);
  const auto layers = Layers(20);
  Evict();
  const auto doubtful = [&](const std::vector<Access>& accesses,
                            std::vector<int> ends, Bytes result) {
    const std::vector<Bytes> results(ends.size(), result);
    return Doubtful(rig_->device(), {accesses, ends, results});
  };
  const std::vector<Access> all = Of(layers);
  // Of 2, 36 and 2 MiB; then none takes more than 30.
  EXPECT_EQ(doubtful(all, {1, 19, 20}, 0), 1u);
  EXPECT_EQ(doubtful(all, {1, 16, 20}, 0), 3u);
  EXPECT_EQ(doubtful(all, {1, 16, 20}, 3 * kMiB), 1u);
  const Address stays =
      Malloc(16 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_EQ(doubtful(all, {1, 8, 20}, 0), 2u);
  Free(stays);
  FreeAll(layers);
}

TEST_F(ListRoomTest, AHandleThatSeveralElementsShareCountsOnce) {
  OpenOf(64 * kMiB);
  const auto layers = Layers(20);
  Evict();
  // Two lists, element by element in one half of a handle each.
  std::vector<Access> halves;
  for (Address layer : layers) {
    halves.push_back({layer, kHandle / 2, true});
    halves.push_back({layer + kHandle / 2, kHandle / 2, false});
  }
  EXPECT_EQ(Next(halves, 0, 0, 2), 8u);
  EXPECT_EQ(Next(halves), 16u);
  FreeAll(layers);
}

TEST_F(ListRoomTest, BytesThatAreNotItsOwnCountNothing) {
  OpenOf(64 * kMiB);
  const auto layers = Layers(4);
  Evict();
  EXPECT_TRUE(Fits({{0x1000, kHandle, false}, {layers[0], 0, false}}));
  EXPECT_FALSE(Fits(Of(layers)));
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
