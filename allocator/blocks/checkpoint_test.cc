// SPDX-License-Identifier: Apache-2.0
// Checkpoints of private pools: back to their blocks and addresses, or nothing
// changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "allocator/private_pool_fixture_test.h"

namespace stratalloc {
namespace {

class CheckpointTest : public PrivatePoolTest {};

TEST_F(CheckpointTest, ACheckpointBringsBlocksBackToTheirAddresses) {
  Route(kGraph);
  const Address a = Malloc(3 * kMiB), b = Malloc(1000), c = Malloc(5 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  ASSERT_EQ(checkpoint->allocated.size(), 3u);
  Free(a);
  Free(b);
  const Address d = Malloc(2 * kMiB);  // into a's place
  auto delta = allocator().GoBackTo(*checkpoint);
  ASSERT_TRUE(delta.has_value()) << delta.error().message;
  EXPECT_EQ(delta->freed.size(), 2u);  // c and d
  EXPECT_EQ(delta->allocated.size(), 3u);
  auto live = allocator().AllocatedIn(kGraph);
  ASSERT_TRUE(live.has_value());
  std::vector<Address> wanted = {a, b, c};
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(*live, wanted);
  EXPECT_EQ(Of(allocator().Stats().requested_bytes).current,
            static_cast<std::int64_t>(8 * kMiB + 1000));
  ASSERT_TRUE(allocator().CheckInvariants().has_value());
  std::erase(live_, d);
  live_.push_back(a);
  live_.push_back(b);
  EndRoute(kGraph);
  Release(kGraph);
}

// What lies before the first block of a checkpoint stays free, and is found.
TEST_F(CheckpointTest, GoingBackLeavesTheFrontFree) {
  Route(kGraph);
  const Address front = Malloc(3 * kMiB), block = Malloc(5 * kMiB);
  ASSERT_EQ(block, front + 3 * kMiB);
  Free(front);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  Free(block);
  ASSERT_TRUE(allocator().GoBackTo(*checkpoint).has_value());
  live_.push_back(block);
  EXPECT_EQ(Malloc(3 * kMiB), front);
  EndRoute(kGraph);
  Release(kGraph);
}

// Half of a block's place is not its place.
TEST_F(CheckpointTest, GoingBackWantsTheWholePlace) {
  const StreamId other = NewStream();
  Route(kGraph);
  const Address whole = Malloc(4 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  Free(whole);
  const Address front = Malloc(2 * kMiB), back = Malloc(2 * kMiB);
  ASSERT_EQ(front, whole);
  ASSERT_EQ(back, whole + 2 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(back, other).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(back);
  EXPECT_EQ(allocator().GoBackTo(*checkpoint).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(*allocator().AllocatedIn(kGraph), std::vector<Address>{front});
  cudasim_clear_faults();
  EndRoute(kGraph);
  Release(kGraph);
}

TEST_F(CheckpointTest, GoingBackWaitsForNoStreamAndLooksAtEventsFirst) {
  const StreamId other = NewStream();
  const Address outside = Malloc(512);  // of no concern to the checkpoint
  Route(kGraph);
  const Address a = Malloc(3 * kMiB), b = Malloc(5 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(checkpoint->allocated.size(), 2u);
  // `a` is freed and its event done, but nobody has looked; `b` is allocated,
  // and another stream uses it.
  ASSERT_TRUE(allocator().RecordStream(a, other).has_value());
  ASSERT_TRUE(allocator().RecordStream(b, other).has_value());
  Free(a);
  cudaDeviceSynchronize();
  auto delta = allocator().GoBackTo(*checkpoint);
  ASSERT_TRUE(delta.has_value()) << delta.error().message;
  EXPECT_EQ(delta->freed.size(), 1u);
  EXPECT_EQ(delta->allocated.size(), 2u);
  live_.push_back(a);
  EndRoute(kGraph);
  Release(kGraph);
  Free(outside);
}

TEST_F(CheckpointTest, ACheckpointOfAPoolThatIsGoneIsRefused) {
  EXPECT_EQ(allocator().TakeCheckpoint(kGraph).error().code,
            ErrorCode::kNotFound);
  Route(kGraph);
  const Address a = Malloc(512);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  EndRoute(kGraph);
  Release(kGraph);
  EXPECT_EQ(allocator().GoBackTo(*checkpoint).error().code,
            ErrorCode::kNotFound);
  Free(a);
}

// A pool's identity can come back with other memory, and its old addresses
// belong to another pool by then.
TEST_F(CheckpointTest, ACheckpointTakesNoOtherPoolsMemory) {
  Lender lender;
  const Address place = lender.next;
  allocator().CreateOrUsePool(kGraph, lender.Source());
  Route(kGraph);
  const Address a = Malloc(15 * kMiB);
  ASSERT_EQ(a, place);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  EndRoute(kGraph);
  Release(kGraph);
  Release(kGraph);
  Free(a);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  ASSERT_TRUE(lender.out.empty());
  lender.next = place;
  allocator().CreateOrUsePool(kUser, lender.Source());
  Route(kUser);
  const Address b = Malloc(15 * kMiB);
  ASSERT_EQ(b, place);
  Free(b);
  EndRoute(kUser);
  allocator().CreateOrUsePool(kGraph);
  EXPECT_EQ(allocator().GoBackTo(*checkpoint).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Of(allocator().Stats().active).current, 0);
  for (const PoolId id : {kGraph, kUser, kUser}) Release(id);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_TRUE(lender.out.empty());
}

TEST_F(CheckpointTest, ACheckpointThatCannotBeReachedChangesNothing) {
  const StreamId other = NewStream();
  Route(kGraph);
  const Address a = Malloc(3 * kMiB), b = Malloc(3 * kMiB);
  auto checkpoint = allocator().TakeCheckpoint(kGraph);
  ASSERT_TRUE(checkpoint.has_value());
  // `a` waits for an event that does not complete: its place is not free.
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Use(a, 3 * kMiB, other);
  ASSERT_TRUE(allocator().RecordStream(a, other).has_value());
  ASSERT_TRUE(allocator().RecordStream(b, other).has_value());
  Free(a);
  const auto before = allocator().AllocatedIn(kGraph);
  auto delta = allocator().GoBackTo(*checkpoint);
  ASSERT_FALSE(delta.has_value()) << "over a block that is still in use";
  EXPECT_EQ(delta.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(*before, std::vector<Address>{b});
  EXPECT_EQ(*allocator().AllocatedIn(kGraph), *before);
  Free(b);  // still has its recorded stream
  EXPECT_NE(Malloc(3 * kMiB), b) << "handed out while it is in use";
  cudasim_clear_faults();
  ASSERT_TRUE(allocator().CheckInvariants().has_value());
  EndRoute(kGraph);
  Release(kGraph);
}

}  // namespace
}  // namespace stratalloc
