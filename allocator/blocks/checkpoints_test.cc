// SPDX-License-Identifier: Apache-2.0
// Going back to a checkpoint, without a lock or a route; what a program sees of
// it is in checkpoint_test.cc.
#include "allocator/blocks/checkpoints.h"

#include <gtest/gtest.h>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0};

class CheckpointsTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    parts().private_pools.Use(kGraph);
    key_ = kLarge;
    key_.lifetime = LifetimeClass::kTransient;
    key_.owner = kGraph;
  }
  void TearDown() override {
    for (const CheckpointBlock& block : checkpoints().AllocatedIn(kGraph)) {
      Free(parts().heap.Find(block.address));
    }
    ASSERT_TRUE(parts().private_pools.Release(kGraph).has_value());
    DevicePartsTest::TearDown();
  }
  Checkpoints& checkpoints() { return parts().checkpoints; }
  PoolKey key_;
};

TEST_F(CheckpointsTest, WhatWasAllocatedIsAllocatedAgainWhereItWas) {
  Block* const one = Malloc(key_, 3 * kMiB);
  Malloc(key_, kMiB);
  Malloc(kLarge, kMiB);  // another pool's
  const Checkpoint checkpoint = checkpoints().Take(kGraph).value();
  EXPECT_TRUE(parts().private_pools.Find(kGraph)->addresses_kept);
  ASSERT_EQ(checkpoint.allocated.size(), 2u);
  const Address address = one->address;
  Free(one);
  Malloc(key_, 2 * kMiB);
  const CheckpointDelta delta = checkpoints().GoBack(checkpoint).value();
  EXPECT_EQ(delta.freed.size(), 2u);
  EXPECT_EQ(delta.allocated.size(), 2u);
  Block* const again = parts().heap.Find(address);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->state, BlockState::kAllocated);
  EXPECT_EQ(again->size, 3 * kMiB);
  EXPECT_EQ(checkpoints().AllocatedIn(kGraph).size(), 2u);
  const PoolKey& other = kLarge;
  Free(parts().heap.FindPool(other)->segments()[0]->first);
}

TEST_F(CheckpointsTest, OnFailureNothingHasChanged) {
  Block* const one = Malloc(key_, 3 * kMiB);
  Block* const two = Malloc(key_, kMiB);
  const Checkpoint checkpoint = checkpoints().Take(kGraph).value();
  const StreamId stream = NewStream();
  cudasim_hold_streams(1);
  two->streams.push_back(stream);
  Work(stream);
  Free(two);  // pending: its place is not free
  one->streams.push_back(stream);
  const Result<CheckpointDelta> delta = checkpoints().GoBack(checkpoint);
  ASSERT_FALSE(delta.has_value());
  EXPECT_EQ(delta.error().code, ErrorCode::kInvalidArgument);
  Block* const kept = parts().heap.Find(checkpoint.allocated[0].address);
  EXPECT_EQ(kept->state, BlockState::kAllocated);
  EXPECT_EQ(kept->streams.size(), 1u) << "and who used it is known";
  EXPECT_TRUE(kept->streams_noted);
  cudasim_hold_streams(0);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  parts().blocks.Process();
  kept->streams.clear();
}

TEST_F(CheckpointsTest, APoolThatIsNotThereHasNone) {
  EXPECT_EQ(checkpoints().Take({7, 0}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(checkpoints().GoBack({{7, 0}, {}}).error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace stratalloc
