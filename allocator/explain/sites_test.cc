// SPDX-License-Identifier: Apache-2.0
// A block keeps the line that asked for it, whatever happens to it.
#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/moving_test.h"
#include "allocator/private_pool_fixture_test.h"
#include "allocator/state/thread_site.h"

namespace stratalloc {
namespace {

constexpr SiteId kHere{7}, kThere{8};

class SitesTest : public PrivatePoolTest {
 protected:
  void SetUp() override {
    Open(64 * kMiB, {.tiering = true});
    allocator().RecordSites(true);
  }
  Address MallocAt(SiteId site, Bytes bytes, StreamId stream = kDefaultStream) {
    thread_site = site;
    const Address address = Malloc(bytes, stream);
    thread_site = kNoSite;
    return address;
  }
  // Bytes on the device and below, of all categories.
  std::map<SiteId, std::pair<Bytes, Bytes>> Look() {
    std::map<SiteId, std::pair<Bytes, Bytes>> found;
    Bytes here = 0, below = 0;
    for (const SiteBytes& row : allocator().Sites()) {
      auto& [on_device, away] = found[row.site];
      on_device += row.on[0];
      away += row.on[1] + row.on[2];
      here += row.on[0];
      below += row.on[1] + row.on[2];
      EXPECT_GT(row.blocks, 0u);
    }
    EXPECT_EQ(here, static_cast<Bytes>(
                        Of(allocator().Stats().allocated_bytes).current));
    EXPECT_EQ(here + below, recorder_.device.on_device.load() +
                                recorder_.device.below.load());
    return found;
  }
  Bytes At(SiteId site) {
    const auto [here, away] = Look()[site];
    return here + away;
  }
};

TEST_F(SitesTest, AMallocOutOfABinIsItsNewAskers) {
  const Address first = MallocAt(kHere, 4 * kMiB);
  EXPECT_EQ(At(kHere), 4 * kMiB);
  Free(first);
  EXPECT_EQ(At(kHere), 0u);
  const Address second = MallocAt(kThere, 4 * kMiB);
  ASSERT_EQ(second, first);
  EXPECT_EQ(At(kHere), 0u);
  EXPECT_EQ(At(kThere), 4 * kMiB);
  Free(second);
  Malloc(4 * kMiB);  // and one that is not sampled is nobody's
  EXPECT_EQ(At(kThere), 0u);
  EXPECT_EQ(At(kNoSite), 4 * kMiB);
}

TEST_F(SitesTest, ABestFitAndAFirstMallocHaveTheirs) {
  const Address whole = MallocAt(kHere, 8 * kMiB);  // grows
  Free(whole);
  const Address part = MallocAt(kThere, 3 * kMiB);  // cut out of it
  EXPECT_EQ(part, whole);
  EXPECT_EQ(At(kThere), 3 * kMiB);
}

TEST_F(SitesTest, ARelabelAndAnEvictionChangeNothing) {
  const Address block = MallocAt(kHere, 4 * kMiB);
  allocator().Relabel(block, 1, {ScopeId{3}, Category::kParameter},
                      /*keep_category=*/false);
  ASSERT_EQ(allocator().Sites().size(), 1u);
  EXPECT_EQ(allocator().Sites()[0].category, Category::kParameter);
  const HandleRef handle = HandleAt(allocator(), block);
  EvictToHost(allocator(), handle);
  const auto [here, away] = Look()[kHere];
  EXPECT_EQ(away, handle.bytes());
  EXPECT_EQ(here + away, 4 * kMiB);
  Free(block);  // the whole way, of a handle that is away
  EXPECT_EQ(At(kHere), 0u);
}

TEST_F(SitesTest, ABlockThatWaitsForItsStreamsIsNobodys) {
  const StreamId other = NewStream();
  const Address block = MallocAt(kHere, 4 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(block, other).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(block);
  EXPECT_EQ(At(kHere), 0u);
  cudasim_clear_faults();
}

TEST_F(SitesTest, ACheckpointBringsSitesBack) {
  Route(kGraph);
  const Address block = MallocAt(kHere, 3 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  Free(block);
  const Address other = MallocAt(kThere, 3 * kMiB);
  ASSERT_EQ(other, block);
  ASSERT_TRUE(allocator().GoBackTo(*checkpoint).has_value());
  EXPECT_EQ(At(kHere), 3 * kMiB);
  EXPECT_EQ(At(kThere), 0u);
  EndRoute(kGraph);
  Free(block);
  Release(kGraph);
  EXPECT_EQ(At(kHere), 0u);
}

TEST_F(SitesTest, APoolOfSomebodyElsesMemory) {
  Lender lender;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  const Address block = MallocAt(kHere, 3 * kMiB);
  EndRoute(kUser);
  Release(kUser);
  Release(kUser);  // the pool has no use left, the block lives on
  EXPECT_EQ(At(kHere), 3 * kMiB);
  Free(block);
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
  EXPECT_EQ(At(kHere), 0u);
}

TEST_F(SitesTest, NothingOfTheTimeBefore) {
  MallocAt(kHere, 2 * kMiB);
  allocator().RecordSites(false);
  const Address unseen = MallocAt(kThere, 4 * kMiB);
  allocator().RecordSites(true);
  EXPECT_EQ(At(kHere), 0u);
  EXPECT_EQ(At(kThere), 0u);
  EXPECT_EQ(At(kNoSite), 6 * kMiB);
  Free(unseen);
}

TEST_F(SitesTest, RowsAddUpWhileThreadsRun) {
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Address> mine;
      for (std::uint32_t i = 0; i < 2000; ++i) {
        thread_site = SiteId{(i + t) % 5};
        const auto block =
            allocator().Malloc({(i % 7 + 1) * 512, kDefaultStream,
                                LifetimeClass::kTransient, kOwner});
        ASSERT_TRUE(block.has_value());
        mine.push_back(block->address);
        if (mine.size() < 16) continue;
        ASSERT_TRUE(allocator().Free(mine[i % 16]).has_value());
        mine.erase(mine.begin() + i % 16);
      }
      for (Address address : mine) {
        ASSERT_TRUE(allocator().Free(address).has_value());
      }
      --running;
    });
  }
  int looks = 0;
  do {
    Bytes sum = 0;
    for (const SiteBytes& row : allocator().Sites()) {
      EXPECT_LT(Raw(row.site), 5u);
      sum += row.on[0];
    }
    EXPECT_LE(sum, 4 * 16 * 3584u);
    ++looks;
  } while (running != 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(looks, 0);
  EXPECT_TRUE(allocator().Sites().empty());
}

}  // namespace
}  // namespace stratalloc
