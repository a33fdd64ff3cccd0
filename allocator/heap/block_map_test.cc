// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/block_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>

namespace stratalloc {
namespace {

constexpr Address kBase = Address{5} << 40;
constexpr Bytes kSize = 3 * kGiB + 5 * kMiB;

TEST(BlockMap, FindsWhatStartsThereAndNothingElse) {
  BlockMap map(kBase, kBase + kSize);
  Block block;
  block.address = kBase + 512;
  map.Insert(&block);
  EXPECT_EQ(map.Find(kBase + 512), &block);
  EXPECT_EQ(map.Find(kBase + 513), nullptr);
  EXPECT_EQ(map.Find(kBase), nullptr);
  EXPECT_EQ(map.Find(kBase + 1024), nullptr);
  EXPECT_EQ(map.Find(0), nullptr);
  EXPECT_EQ(map.Find(~Address{0}), nullptr);
  EXPECT_EQ(map.Find(kBase + kSize), nullptr);
  EXPECT_EQ(map.FindBelow(kBase), nullptr);
  EXPECT_EQ(map.FindBelow(kBase + kSize - 1), &block)
      << "over leaves that were never made";
  map.Erase(block.address);
  EXPECT_EQ(map.Find(kBase + 512), nullptr);
  EXPECT_EQ(map.FindBelow(kBase + kSize - 1), nullptr);
}

TEST(BlockMap, AgreesWithAMapOnRandomPrograms) {
  BlockMap map(kBase, kBase + kSize);
  std::map<Address, std::unique_ptr<Block>> truth;
  std::mt19937_64 random(7);
  // Dense in one place, sparse elsewhere, some outside the reservation.
  const auto anywhere = [&]() -> Address {
    switch (random() % 4) {
      case 0:
        return kBase + 100 * kMiB + random() % 600 * 512;
      case 1:
        return kBase - 64 * kMiB + random() % 1000 * 512;
      default:
        return kBase + random() % (kSize / 512) * 512;
    }
  };
  for (int i = 0; i < 20'000; ++i) {
    const Address at = anywhere();
    if (random() % 2 == 0 && !truth.contains(at)) {
      auto block = std::make_unique<Block>();
      block->address = at;
      map.Insert(block.get());
      truth[at] = std::move(block);
    } else if (auto above = truth.lower_bound(at); above != truth.end()) {
      map.Erase(above->first);
      truth.erase(above);
    }
    const Address asked = anywhere() + random() % 512;
    const auto exact = truth.find(asked);
    EXPECT_EQ(map.Find(asked),
              exact == truth.end() ? nullptr : exact->second.get());
    const auto above = truth.upper_bound(asked);
    Block* below =
        above == truth.begin() ? nullptr : std::prev(above)->second.get();
    // The reservation's edge is a wall.
    if (below != nullptr && asked >= kBase && below->address < kBase) {
      below = nullptr;
    }
    ASSERT_EQ(map.FindBelow(asked), below);
    // Up to that edge too.
    const Address lo = std::min(at, asked), hi = std::max(at, asked);
    if ((lo < kBase) != (hi < kBase)) continue;
    ASSERT_EQ(map.Count(lo, hi),
              static_cast<std::size_t>(
                  std::distance(truth.lower_bound(lo), truth.lower_bound(hi))));
  }
}

}  // namespace
}  // namespace stratalloc
