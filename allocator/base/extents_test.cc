// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/extents.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace stratalloc {
namespace {

TEST(Extents, TakesFromBothEndsAndMergesBack) {
  Extents extents;
  extents.Add(0, 100);
  EXPECT_EQ(extents.TakeLow(10), 0u);
  EXPECT_EQ(extents.TakeHigh(30), 70u);
  EXPECT_EQ(extents.total(), 60u);
  EXPECT_FALSE(extents.TakeLow(61));
  extents.Add(70, 30);
  extents.Add(0, 10);
  ASSERT_EQ(extents.ranges().size(), 1u);
  EXPECT_EQ(extents.largest(), 100u);
}

TEST(Extents, FillsAHoleExactly) {
  Extents extents;
  extents.Add(0, 30);
  EXPECT_EQ(extents.TakeLow(10), 0u);
  EXPECT_EQ(extents.TakeLow(10), 10u);
  EXPECT_EQ(extents.TakeLow(10), 20u);
  EXPECT_FALSE(extents.TakeLow(1));
  extents.Add(10, 10);
  EXPECT_EQ(extents.TakeHigh(10), 10u);
  EXPECT_EQ(extents.ranges().size(), 0u);
}

// Random takes and adds against a byte map: no byte is handed out twice, and
// everything comes back as one range.
TEST(Extents, RandomTakesNeverOverlap) {
  constexpr std::uint64_t kLine = 512;
  std::mt19937 random(7);
  Extents extents;
  extents.Add(0, kLine);
  std::vector<bool> taken(kLine, false);
  std::map<std::uint64_t, Bytes> live;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0) {
      const Bytes bytes = 1 + random() % 40;
      const auto at =
          random() % 2 ? extents.TakeLow(bytes) : extents.TakeHigh(bytes);
      if (!at) {
        EXPECT_LT(extents.largest(), bytes);
        continue;
      }
      for (std::uint64_t i = *at; i < *at + bytes; ++i) {
        ASSERT_FALSE(taken[i]);
        taken[i] = true;
      }
      live[*at] = bytes;
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      for (std::uint64_t i = it->first; i < it->first + it->second; ++i) {
        taken[i] = false;
      }
      extents.Add(it->first, it->second);
      live.erase(it);
    }
  }
  for (const auto& [offset, bytes] : live) extents.Add(offset, bytes);
  ASSERT_EQ(extents.ranges().size(), 1u);
  EXPECT_EQ(extents.total(), kLine);
}

TEST(ExtentsDeathTest, DoubleAddIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Extents extents;
  extents.Add(0, 10);
  EXPECT_DEATH(extents.Add(9, 5), "already free");
}

}  // namespace
}  // namespace stratalloc
