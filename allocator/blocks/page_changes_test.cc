// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/page_changes.h"

#include <gtest/gtest.h>

namespace stratalloc {
namespace {

TEST(PageChanges, NothingIsNotedBeforeTheFirstTake) {
  PageChanges changes;
  changes.Note(1, true);
  EXPECT_TRUE(changes.some()) << "the first Take is asked for";
  EXPECT_TRUE(changes.Take().empty());
  EXPECT_FALSE(changes.some());
  EXPECT_TRUE(changes.noting());
}

TEST(PageChanges, TakeHasThemInOrder) {
  PageChanges changes;
  changes.Take();
  changes.Note(1, true);
  changes.Note(1, false);
  changes.Note(2, true);
  EXPECT_TRUE(changes.some());
  const auto taken = changes.Take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].page, 1u);
  EXPECT_TRUE(taken[0].made);
  EXPECT_FALSE(taken[1].made);
  EXPECT_EQ(taken[2].page, 2u);
  EXPECT_TRUE(changes.Take().empty());
}

TEST(PageChanges, OldOnesAreDroppedBeyondTheBound) {
  PageChanges changes;
  changes.Take();
  for (std::size_t i = 0; i <= PageChanges::kMost; ++i) changes.Note(i, true);
  const auto taken = changes.Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].page, PageChanges::kMost);
}

}  // namespace
}  // namespace stratalloc
