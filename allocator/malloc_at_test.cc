// SPDX-License-Identifier: Apache-2.0
// Blocks at an address that the caller names, rejections, and the bytes that
// each private pool has reserved: what torch 2.12 and 2.13 added.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/private_pool_fixture_test.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;

class MallocAtTest : public PrivatePoolTest {
 protected:
  Result<AllocatedBlock> At(Bytes bytes, Address address,
                            StreamId stream = kDefaultStream) {
    Result<AllocatedBlock> block = allocator().MallocAt(
        {bytes, stream, LifetimeClass::kPersistent, kOwner}, address);
    if (block) live_.push_back(block->address);
    return block;
  }
};

TEST_F(MallocAtTest, FreeMemoryAtAddressIsCutOnBothSides) {
  const Address base = Malloc(512 * 1024);
  Free(base);
  const Bytes reserved = Reserved();
  const Result<AllocatedBlock> block = At(1000, base + 4096);
  ASSERT_TRUE(block.has_value()) << block.error().message;
  EXPECT_EQ(block->address, base + 4096);
  EXPECT_EQ(block->bytes, 1024u);
  EXPECT_EQ(Reserved(), reserved);
  EXPECT_EQ(Of(allocator().Stats().allocated_bytes).current, 1024);
  EXPECT_EQ(Malloc(4096), base) << "what is in front is free";
  EXPECT_EQ(Malloc(2048), base + 4096 + 1024) << "and what is behind";
}

TEST_F(MallocAtTest, BlockThatTheFastPathFreedIsFound) {
  const Address base = Malloc(2048);
  const Address keep = Malloc(512);
  (void)keep;
  Free(base);
  EXPECT_TRUE(At(2048, base).has_value());
}

TEST_F(MallocAtTest, AddressThatIsNotFreeIsNotFound) {
  const Address base = Malloc(4096);
  for (const Address wrong : {base, base + 512, Address{512}}) {
    const Result<AllocatedBlock> block = At(512, wrong);
    ASSERT_FALSE(block.has_value());
    EXPECT_EQ(block.error().code, ErrorCode::kNotFound);
  }
  Free(base);
  EXPECT_FALSE(At(4 * kMiB, base).has_value()) << "larger than what is free";
  EXPECT_FALSE(At(512, base, NewStream()).has_value()) << "another stream's";
  Route(kUser);
  EXPECT_FALSE(At(512, base).has_value()) << "another pool's";
  EndRoute(kUser);
  Release(kUser);
  EXPECT_TRUE(At(512, base).has_value());
}

TEST_F(MallocAtTest, UnsplitPoolServesItsBlockWholeOrNotAtAll) {
  allocator().CreateOrUsePool(kUser);
  ASSERT_TRUE(allocator().SetNoSplit(kUser).has_value());
  Route(kUser);
  const Address base = Malloc(4 * kMiB);
  Free(base);
  const Result<AllocatedBlock> within = At(2 * kMiB, base + kMiB);
  ASSERT_FALSE(within.has_value());
  EXPECT_EQ(within.error().message, "its pool does not split blocks");
  const Result<AllocatedBlock> whole = At(2 * kMiB, base);
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->bytes, 4 * kMiB);
  EndRoute(kUser);
  Release(kUser);
  Release(kUser);
}

TEST_F(MallocAtTest, CapturedStreamIsServedFromThePoolOfItsCapture) {
  const StreamId stream = NewStream();
  Free(Malloc(4096, stream));
  Route(kGraph);
  Capture(stream, true);
  const Address base = Malloc(4096, stream);
  const Address keep = Malloc(512, stream);
  (void)keep;
  Free(base);
  const Result<AllocatedBlock> block = At(2048, base + 1024, stream);
  EXPECT_TRUE(block.has_value()) << block.error().message;
  EXPECT_EQ(OwnerOf(base), kGraph);
  Capture(stream, false);
  EndRoute(kGraph);
  Release(kGraph);
}

TEST_F(MallocAtTest, ReservedBytesOfPoolsAreCountedBesideTheSum) {
  const Address own = Malloc(4096);
  (void)own;
  Route(kUser);
  Malloc(512);
  const Address large = Malloc(8 * kMiB);
  EndRoute(kUser);
  const DeviceStats stats = allocator().Stats();
  ASSERT_EQ(stats.reserved_by_private_pools.size(), 1u);
  const StatArray& mine = stats.reserved_by_private_pools.at(kUser);
  EXPECT_GE(mine.stats[2].current, static_cast<std::int64_t>(8 * kMiB));
  EXPECT_GT(mine.stats[1].current, 0);
  EXPECT_EQ(mine.stats[0].current,
            mine.stats[1].current + mine.stats[2].current);
  EXPECT_LT(mine.stats[0].current, Of(stats.reserved_bytes).current);
  Free(large);
  Release(kUser);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  const DeviceStats after = allocator().Stats();
  EXPECT_EQ(after.reserved_by_private_pools.at(kUser).stats[2].current, 0);
  EXPECT_EQ(after.reserved_by_private_pools.at(kUser).stats[2].peak,
            mine.stats[2].peak);
}

double share = 0;

class RejectionTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    DeviceAllocatorTest::SetUp();
    Settings::Get().UseRejectionShare([] { return share; });
  }
  void TearDown() override {
    share = 0;
    Settings::Get().UseRejectionShare(nullptr);
    DeviceAllocatorTest::TearDown();
  }
  ErrorCode Refusal(Bytes bytes) {
    const Result<AllocatedBlock> block = allocator().Malloc(
        {bytes, kDefaultStream, LifetimeClass::kPersistent, kOwner});
    EXPECT_FALSE(block.has_value());
    return block ? ErrorCode::kNotFound : block.error().code;
  }
  std::vector<std::int64_t> Counts() {
    const DeviceStats stats = allocator().Stats();
    return {stats.num_ooms, stats.num_oom_rejections};
  }
};

TEST_F(RejectionTest, RequestBeyondTheShareIsRejected) {
  EXPECT_EQ(Refusal(80 * kMiB), ErrorCode::kOutOfMemory);
  share = 0.5;  // of 64 MiB
  EXPECT_EQ(Refusal(40 * kMiB), ErrorCode::kRejected);
  EXPECT_THAT(Counts(), ElementsAre(1, 1));
  Malloc(30 * kMiB);
  allocator().ResetAccumulatedStats();
  EXPECT_THAT(Counts(), ElementsAre(0, 0));
}

TEST_F(RejectionTest, FractionThatWasSetIsAnOutOfMemory) {
  share = 0.125;
  allocator().SetFraction(0.25);  // beyond both
  EXPECT_EQ(Refusal(20 * kMiB), ErrorCode::kOutOfMemory);
  EXPECT_THAT(Counts(), ElementsAre(1, 0));
}

TEST_F(RejectionTest, CachedMemoryIsGivenBackBeforeARejection) {
  share = 0.5;
  const Address cached = Malloc(20 * kMiB, NewStream());
  Free(cached);
  Malloc(28 * kMiB);
  EXPECT_THAT(Counts(), ElementsAre(0, 0));
}

}  // namespace
}  // namespace stratalloc
