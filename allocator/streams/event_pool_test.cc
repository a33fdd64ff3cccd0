// SPDX-License-Identifier: Apache-2.0
// Events that nobody uses now: kept, given again, and each for the streams of
// one device.
#include "allocator/streams/event_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

class EventPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    pool_.emplace(*device_);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&raw_, cudaStreamNonBlocking),
              cudaSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    there_ = StreamElsewhere(DeviceIndex{1},
                             StreamId{reinterpret_cast<std::uint64_t>(raw_)});
  }
  void TearDown() override {
    cudasim_clear_faults();
    pool_.reset();
    EXPECT_EQ(cudasim_live_events(), 0) << "every event went with the pool";
    EXPECT_EQ(cudaStreamDestroy(raw_), cudaSuccess);
    EXPECT_EQ(cudasim_violation_count(), 0);
  }
  bool MayRecord(EventId event, StreamId stream) {
    return device_->RecordEvent(event, stream).has_value();
  }

  std::unique_ptr<Device> device_;
  std::optional<EventPool> pool_;
  cudaStream_t raw_ = nullptr;
  StreamId there_{};  // of another device
};

TEST_F(EventPoolTest, WhatWasPutBackIsTakenAgain) {
  const EventId event = pool_->Take(kDefaultStream);
  ASSERT_NE(event, kNoEvent);
  pool_->Put(event, kDefaultStream);
  EXPECT_EQ(cudasim_live_events(), 1) << "a thread may still wait for it";
  EXPECT_EQ(pool_->Take(kDefaultStream), event);
  EXPECT_EQ(cudasim_live_events(), 1);
  pool_->Put(event, kDefaultStream);
}

TEST_F(EventPoolTest, WhatIsInUseIsNobodyElses) {
  const EventId one = pool_->Take(kDefaultStream);
  const EventId two = pool_->Take(kDefaultStream);
  EXPECT_NE(one, two);
  pool_->Put(one, kDefaultStream);
  pool_->Put(two, kDefaultStream);
  const EventId again = pool_->Take(kDefaultStream);
  EXPECT_NE(pool_->Take(kDefaultStream), again);
  EXPECT_EQ(cudasim_live_events(), 2);
  pool_->Put(one, kDefaultStream);
  pool_->Put(two, kDefaultStream);
}

// Whoever holds the lock must not wait for the driver.
TEST_F(EventPoolTest, WhatIsUnusedComesWithoutTheDriver) {
  const long calls = cudasim_calls(nullptr);
  EXPECT_EQ(pool_->TakeUnused(), kNoEvent);
  EXPECT_EQ(cudasim_calls(nullptr), calls);
  const EventId event = device_->CreateEvent().value();
  pool_->Put(event, kDefaultStream);
  EXPECT_EQ(pool_->TakeUnused(), event);
  EXPECT_EQ(pool_->TakeUnused(), kNoEvent);
  pool_->Put(event, kDefaultStream);
}

TEST_F(EventPoolTest, StreamsOfAnotherDeviceHaveEventsOfThatDevice) {
  const EventId there = pool_->Take(there_);
  ASSERT_NE(there, kNoEvent);
  EXPECT_TRUE(MayRecord(there, there_));
  pool_->Put(there, there_);
  EXPECT_EQ(pool_->TakeUnused(), kNoEvent) << "not one of this device";
  const EventId here = pool_->Take(kDefaultStream);
  EXPECT_NE(here, there);
  EXPECT_TRUE(MayRecord(here, kDefaultStream));
  pool_->Put(here, kDefaultStream);
  EXPECT_EQ(pool_->Take(there_), there) << "and not one of that";
  const StreamId third =
      StreamElsewhere(DeviceIndex{2}, StreamId{Raw(kDefaultStream)});
  const EventId elsewhere = pool_->Take(third);
  EXPECT_NE(elsewhere, there);
  EXPECT_TRUE(MayRecord(elsewhere, third));
  pool_->Put(there, there_);
  pool_->Put(elsewhere, third);
}

TEST_F(EventPoolTest, ADriverWithoutEventsIsNoFailure) {
  ASSERT_EQ(cudasim_fail("cudaEventCreateWithFlags", 1, cudaErrorUnknown, 0),
            0);
  EXPECT_EQ(pool_->Take(kDefaultStream), kNoEvent);
  const EventId event = pool_->Take(kDefaultStream);
  EXPECT_NE(event, kNoEvent) << "it is asked again";
  pool_->Put(event, kDefaultStream);
}

}  // namespace
}  // namespace stratalloc
