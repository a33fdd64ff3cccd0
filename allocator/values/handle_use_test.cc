// SPDX-License-Identifier: Apache-2.0
#include "allocator/values/handle_use.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace stratalloc {
namespace {

using Intervals = std::array<std::uint32_t, HandleUse::kIntervals>;

constexpr std::uint32_t kBurst = 16;

TEST(HandleUse, UsesFartherApartThanABurstAreUsesOfTheirOwn) {
  HandleUse use;
  use.NoteHandedOut(1, 100);
  use.NoteOperator(1, false, 100 + kBurst, kBurst);
  EXPECT_EQ(use.Intervals(), Intervals{});
  EXPECT_EQ(use.last_use.load(), 116u) << "of the burst the last one counts";
  use.NoteOperator(1, false, 116 + kBurst + 1, kBurst);
  EXPECT_EQ(use.Intervals(), (Intervals{17}));
}

TEST(HandleUse, TheLastFourIntervalsAreKnownTheNewestFirst) {
  HandleUse use;
  std::uint32_t now = 0;
  for (const std::uint32_t after : {20, 30, 40, 50, 60}) {
    use.NoteOperator(1, false, now += after, kBurst);
  }
  EXPECT_EQ(use.Intervals(), (Intervals{60, 50, 40, 30}));
}

TEST(HandleUse, WhoTookItsTicksEarlierIsNoUseOfItsOwn) {
  HandleUse use;
  use.NoteHandedOut(1, 100);
  use.NoteOperator(1, false, 40, kBurst);
  EXPECT_EQ(use.Intervals(), Intervals{});
}

TEST(HandleUse, StreamsAddUpAndAWriteStaysNoted) {
  HandleUse use;
  use.NoteOperator(1, false, 1, kBurst);
  EXPECT_FALSE(use.dirty.load()) << "it was read";
  use.NoteOperator(4, true, 2, kBurst);
  use.NoteOperator(1, false, 3, kBurst);
  EXPECT_EQ(use.used_streams.load(), 5u);
  EXPECT_TRUE(use.dirty.load());
}

TEST(HandleUse, WhatIsHandedOutIsWrittenOnItsStream) {
  HandleUse use;
  use.NoteHandedOut(2, 7);
  EXPECT_EQ(use.used_streams.load(), 2u);
  EXPECT_TRUE(use.dirty.load());
  EXPECT_EQ(use.last_use.load(), 7u);
  EXPECT_EQ(use.pins.load(), 0u);
}

TEST(HandleUse, NewBytesHaveNoPast) {
  HandleUse use;
  use.NoteOperator(6, false, 50, kBurst);
  use.Begin();
  EXPECT_EQ(use.used_streams.load(), 0u);
  EXPECT_TRUE(use.dirty.load()) << "no copy holds them";
  EXPECT_EQ(use.Intervals(), Intervals{});
}

}  // namespace
}  // namespace stratalloc
