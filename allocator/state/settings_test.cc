// SPDX-License-Identifier: Apache-2.0
#include "allocator/state/settings.h"

#include <gtest/gtest.h>

#include <array>

namespace stratalloc {
namespace {

std::array<std::size_t, Settings::kIntervals> divisions{};

class SettingsTest : public testing::Test {
 protected:
  void SetUp() override {
    divisions.fill(0);
    settings_.UseDivisions(divisions.data());
  }
  Settings settings_;
};

TEST_F(SettingsTest, WithoutDivisionsSizesAreMultiplesOf512) {
  EXPECT_EQ(settings_.Round(1), 512u);
  EXPECT_EQ(settings_.Round(513), 1024u);
  EXPECT_EQ(settings_.Round(kMiB + 1), kMiB + 512);
}

TEST_F(SettingsTest, AChangeCountsAtOnce) {
  divisions.fill(4);
  EXPECT_EQ(settings_.Round(1200 * kMiB), 1280 * kMiB);
  divisions.fill(8);
  EXPECT_EQ(settings_.Round(1200 * kMiB), 1280 * kMiB);
  EXPECT_EQ(settings_.Round(1300 * kMiB), 1408 * kMiB);
  divisions.fill(0);
  EXPECT_EQ(settings_.Round(1300 * kMiB), 1300 * kMiB);
}

TEST_F(SettingsTest, EveryIntervalHasItsOwn) {
  divisions[0] = 4;   // below 2 MiB
  divisions[15] = 2;  // from 32 GiB on
  EXPECT_EQ(settings_.Round(kMiB + 1), kMiB + kMiB / 4);
  EXPECT_EQ(settings_.Round(5 * kMiB + 1), 5 * kMiB + 512);
  EXPECT_EQ(settings_.Round(33 * kGiB), 48 * kGiB);
  EXPECT_EQ(settings_.Round(65 * kGiB), 96 * kGiB);
  // Small sizes belong to the first interval; too small ones stay.
  EXPECT_EQ(settings_.Round(5000), 5120u);
  EXPECT_EQ(settings_.Round(2048), 2048u);
}

TEST_F(SettingsTest, PowersOfTwoStay) {
  divisions.fill(16);
  EXPECT_EQ(settings_.Round(4 * kMiB), 4 * kMiB);
}

}  // namespace
}  // namespace stratalloc
