// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/card_room.h"

#include <gtest/gtest.h>

namespace stratalloc {
namespace {

constexpr Bytes kHeadroom = 8 * kMiB;

TEST(CardRoom, TheHeadroomIsAShareOfTheCardInWholeGranules) {
  const Bytes granularity = 2 * kMiB;
  EXPECT_EQ(CardRoom::HeadroomOf(24 * kGiB, /*granularity=*/0), 0u);
  EXPECT_EQ(CardRoom::HeadroomOf(64 * kMiB, granularity), 0u);
  EXPECT_EQ(CardRoom::HeadroomOf(200 * kMiB, granularity), 2 * kMiB);
  EXPECT_EQ(CardRoom::HeadroomOf(8 * kGiB, granularity), 128 * kMiB);
  EXPECT_EQ(CardRoom::HeadroomOf(24 * kGiB, granularity), 384 * kMiB);
  EXPECT_EQ(CardRoom::HeadroomOf(140 * kGiB, granularity), 512 * kMiB);
}

TEST(CardRoom, EverythingIsOursBeforeTheFirstLook) {
  CardRoom room(kHeadroom);
  EXPECT_EQ(room.Room(), ~Bytes{0});
  EXPECT_EQ(room.Most(), ~Bytes{0});
  EXPECT_FALSE(room.Take()) << "nothing was left to anybody";
}

TEST(CardRoom, FromThenOnWhatWeHaveAndWhatIsFree) {
  CardRoom room(kHeadroom);
  room.Look(100 * kMiB, 20 * kMiB);
  EXPECT_EQ(room.Most(), 120 * kMiB);
  EXPECT_EQ(room.Room(), 112 * kMiB);
  room.Look(100 * kMiB, 0);  // others took it
  EXPECT_EQ(room.Room(), 92 * kMiB);
  room.Look(4 * kMiB, 0);  // less than the headroom
  EXPECT_EQ(room.Room(), 0u);
}

TEST(CardRoom, TheHeadroomIsTakenOnceAndAskedForBack) {
  CardRoom room(kHeadroom);
  room.Look(100 * kMiB, 20 * kMiB);
  EXPECT_TRUE(room.Take());
  EXPECT_EQ(room.Room(), 120 * kMiB);
  EXPECT_FALSE(room.Take());
  EXPECT_TRUE(room.IsDue(/*refused=*/false));
  room.Look(118 * kMiB, 2 * kMiB);
  EXPECT_EQ(room.Room(), 112 * kMiB);
  EXPECT_TRUE(room.Take());
}

TEST(CardRoom, OfACardWithoutHeadroomNothingIsToBeTaken) {
  CardRoom room(0);
  room.Look(100 * kMiB, 20 * kMiB);
  EXPECT_EQ(room.Room(), 120 * kMiB);
  EXPECT_FALSE(room.Take());
}

TEST(CardRoom, ALookIsDueAtFirstWhenRefusedAndNowAndThen) {
  CardRoom room(kHeadroom);
  EXPECT_TRUE(room.IsDue(/*refused=*/false)) << "the first need";
  room.Look(kMiB, kMiB);
  EXPECT_FALSE(room.IsDue(false));
  EXPECT_TRUE(room.IsDue(/*refused=*/true));
  room.Look(kMiB, kMiB);
  int needs = 1;
  while (!room.IsDue(false)) ++needs;
  EXPECT_EQ(needs, 64);
}

}  // namespace
}  // namespace stratalloc
