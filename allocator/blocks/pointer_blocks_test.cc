// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/pointer_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace stratalloc {
namespace {

class PointerBlocksTest : public ::testing::Test {
 protected:
  PointerBlocksTest() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].size = (i + 1) * kMiB;
      list_.Add(blocks_[i]);
    }
  }
  // Sizes in MiB, the oldest first: each block by its number from 1.
  std::vector<Bytes> Order() {
    std::vector<Bytes> order;
    for (const Block* b = list_.oldest(); b != nullptr; b = b->newer_pointer) {
      order.push_back(b->size / kMiB);
    }
    EXPECT_TRUE(list_.CheckInvariants());
    return order;
  }
  using Sizes = std::vector<Bytes>;

  std::array<Block, 4> blocks_;
  PointerBlocks list_;
};

TEST_F(PointerBlocksTest, TheOldestComesFirst) {
  EXPECT_EQ(Order(), (Sizes{1, 2, 3, 4}));
  EXPECT_EQ(list_.bytes(), 10 * kMiB);
  EXPECT_EQ(list_.count(), 4u);
}

TEST_F(PointerBlocksTest, WhoIsAskedForAgainIsTheNewest) {
  list_.Renew(blocks_[0]);
  EXPECT_EQ(Order(), (Sizes{2, 3, 4, 1}));
  list_.Renew(blocks_[2]);
  EXPECT_EQ(Order(), (Sizes{2, 4, 1, 3}));
  list_.Renew(blocks_[2]);  // it is the newest already
  EXPECT_EQ(Order(), (Sizes{2, 4, 1, 3}));
  EXPECT_EQ(list_.bytes(), 10 * kMiB);
}

TEST_F(PointerBlocksTest, WhoIsRemovedCountsNoMore) {
  list_.Remove(blocks_[1]);  // amidst, newest, oldest, last
  EXPECT_EQ(Order(), (Sizes{1, 3, 4}));
  list_.Remove(blocks_[3]);
  EXPECT_EQ(Order(), (Sizes{1, 3}));
  list_.Remove(blocks_[0]);
  EXPECT_EQ(Order(), (Sizes{3}));
  EXPECT_EQ(list_.bytes(), 3 * kMiB);
  list_.Remove(blocks_[2]);
  EXPECT_EQ(list_.oldest(), nullptr);
  EXPECT_EQ(list_.bytes(), 0u);
  EXPECT_EQ(list_.count(), 0u);
  list_.Add(blocks_[2]);
  EXPECT_EQ(Order(), (Sizes{3}));
}

}  // namespace
}  // namespace stratalloc
