// SPDX-License-Identifier: Apache-2.0
// A request that fits nowhere evicts nothing before it is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "allocator/device_allocator.h"
#include "allocator/device_allocator_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

class CountingReclaimer final : public Reclaimer {
 public:
  bool Reclaim(DeviceIndex, MemoryRequest& request) override {
    ++asked;
    hopeless = request.IsHopeless();
    return false;
  }
  Bytes ReclaimCold(DeviceIndex, Bytes) override { return 0; }
  void OnPressure(DeviceIndex, Bytes, Bytes) override {}
  const char* LastRefusal(DeviceIndex) override { return "of last time"; }
  int asked = 0;
  bool hopeless = false;
};

class HopelessTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    DeviceAllocatorTest::SetUp();
    allocator().SetReclaimer(&reclaimer_);
  }
  Error Refused(Bytes bytes) {
    auto refused = allocator().Malloc(
        {bytes, kDefaultStream, LifetimeClass::kTransient, kOwner});
    EXPECT_FALSE(refused.has_value());
    return refused ? Error{} : refused.error();
  }

  CountingReclaimer reclaimer_;
};

TEST_F(HopelessTest, MoreThanTheCardIsRefusedWithoutEviction) {
  Malloc(20 * kMiB);
  const Error error = Refused(65 * kMiB);
  EXPECT_EQ(error.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(error.message, HasSubstr("CUDA out of memory. Tried to allocate "
                                       "65.00 MiB."));
  EXPECT_THAT(error.message, testing::Not(HasSubstr("of last time")));
  EXPECT_EQ(reclaimer_.asked, 0);
  EXPECT_EQ(allocator().Stats().num_ooms, 1);
  EXPECT_EQ(allocator().Stats().num_alloc_retries, 1);
}

TEST_F(HopelessTest, AFractionCountsAsTheLimit) {
  Malloc(10 * kMiB);
  allocator().SetFraction(0.5);
  Refused(33 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 0);
  Refused(30 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 1) << "it would fit beside nothing";
}

TEST_F(HopelessTest, WhatNeverLeavesIsNotMadeRoomOf) {
  Malloc(30 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  Malloc(20 * kMiB);
  // The reclaimer may know of another thread whose memory is about to go, but
  // it is told that eviction alone is vain.
  EXPECT_THAT(Refused(40 * kMiB).message,
              testing::Not(HasSubstr("of last time")));
  EXPECT_TRUE(reclaimer_.hopeless);
  EXPECT_THAT(Refused(32 * kMiB).message, HasSubstr("of last time"));
  EXPECT_FALSE(reclaimer_.hopeless) << "20 MiB of the card may leave";
}

TEST_F(HopelessTest, WhatWaitsForItsStreamMayStillComeFree) {
  const StreamId side = NewStream();
  const Address waits =
      Malloc(30 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  ASSERT_TRUE(allocator().RecordStream(waits, side).has_value());
  for (int step = 0; step < 100; ++step) Use(waits, 30 * kMiB, side);
  Malloc(20 * kMiB);
  Free(waits);
  // Eviction cannot help here, but the stream's end does.
  EXPECT_NE(Malloc(40 * kMiB, kDefaultStream, LifetimeClass::kTransient), 0u);
  EXPECT_EQ(reclaimer_.asked, 0) << "nothing leaves before that was waited for";
}

TEST_F(HopelessTest, CachedMemoryGoesBackBeforeItIsRefused) {
  Free(Malloc(20 * kMiB));
  Refused(65 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 0);
  EXPECT_EQ(Of(allocator().Stats().reserved_bytes).current, 0);
  EXPECT_EQ(cudasim_used(0), 0u);
}

}  // namespace
}  // namespace stratalloc
