// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/free_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "allocator/heap/block.h"

namespace stratalloc {
namespace {

void File(FreeIndex& index, Block& block) {
  block.filed = index.Insert({block.size, block.address, &block});
}

Block At(Address address, Bytes size) {
  Block block;
  block.address = address;
  block.size = size;
  return block;
}

TEST(FreeIndex, FindsTheSmallestThatFitsThenTheLowest) {
  FreeIndex index;
  Block a = At(1000, 100), b = At(5000, 50), c = At(3000, 50);
  File(index, a);
  File(index, b);
  File(index, c);
  EXPECT_EQ(index.Find(10), &c);
  EXPECT_EQ(index.Find(51), &a);
  EXPECT_EQ(index.Find(101), nullptr);
  EXPECT_EQ(index.Largest(), 100u);
  index.Erase(c.filed);
  EXPECT_EQ(index.Find(10), &b);
}

TEST(FreeIndex, NothingIsFoundInNone) {
  const FreeIndex index;
  EXPECT_EQ(index.Find(1), nullptr);
  EXPECT_EQ(index.Find(Bytes{1} << 60), nullptr);
  EXPECT_EQ(index.Largest(), 0u);
  EXPECT_TRUE(index.ForEach([](const FreeKey&) { return false; }));
}

TEST(FreeIndex, SizesBeyondEveryCardShareAClass) {
  FreeIndex index;
  Block large = At(0, Bytes{1} << 52), larger = At(0, Bytes{1} << 53);
  File(index, larger);
  File(index, large);
  EXPECT_EQ(index.Find(Bytes{1} << 50), &large);
  EXPECT_EQ(index.Find((Bytes{1} << 52) + 1), &larger);
  EXPECT_EQ(index.Largest(), Bytes{1} << 53);
}

// Against one ordered map of everything, over all magnitudes.
TEST(FreeIndex, IsOneOrder) {
  std::mt19937_64 random(7);
  FreeIndex index;
  std::map<std::pair<Bytes, Address>, Block*> model;
  std::vector<Block> blocks(500);
  std::vector<bool> in(blocks.size());
  const auto size_like = [&] {
    return kMinBlockSize * (1 + (random() >> (20 + random() % 44)));
  };
  for (int step = 0; step < 20000; ++step) {
    const std::size_t i = random() % blocks.size();
    Block& block = blocks[i];
    if (in[i]) {
      index.Erase(block.filed);
      model.erase({block.size, block.address});
    } else {
      block.size = size_like();
      block.address = (i + 1) * kMiB;
      File(index, block);
      model[{block.size, block.address}] = &block;
    }
    in[i] = !in[i];
    const Bytes wanted = size_like();
    const auto fits = model.lower_bound({wanted, 0});
    ASSERT_EQ(index.Find(wanted), fits == model.end() ? nullptr : fits->second);
    ASSERT_EQ(index.Largest(), model.empty() ? 0 : model.rbegin()->first.first);
    if (step % 100 == 0) {
      ASSERT_EQ(index.size(), model.size());
      ASSERT_TRUE(index.CheckInvariants());
    }
  }
  auto next = model.begin();
  EXPECT_TRUE(index.ForEach([&](const FreeKey& key) {
    EXPECT_EQ(key.block, next->second);
    return ++next, true;
  }));
  EXPECT_EQ(next, model.end());
}

TEST(FreeIndex, ABlockThatChangedWhileItIsFiledIsFound) {
  FreeIndex index;
  Block block = At(1000, 100), other = At(5000, 100);
  File(index, block);
  File(index, other);
  EXPECT_TRUE(index.CheckInvariants());
  ++block.size;
  EXPECT_FALSE(index.CheckInvariants());
  --block.size;
  block.filed = other.filed;
  EXPECT_FALSE(index.CheckInvariants());
}

}  // namespace
}  // namespace stratalloc
