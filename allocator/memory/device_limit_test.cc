// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/device_limit.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr Bytes kCard = 256 * kMiB;
constexpr Bytes kHeadroom = 4 * kMiB;  // a 64th
constexpr Bytes kOthers = 64 * kMiB;   // what another process has

class DeviceLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    cudasim_set_capacity(0, kCard);
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    ASSERT_EQ(cudasim_take_memory(0, kOthers), kOthers);
  }
  void TearDown() override {
    cudasim_clear_faults();
    cudasim_take_memory(0, 0);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceLimitTest, TheLeastOfWhatTheProgramSet) {
  EXPECT_EQ(DeviceLimit::Of(kCard, 0, 1.0), kCard);
  EXPECT_EQ(DeviceLimit::Of(kCard, 2 * kCard, 1.0), kCard);
  EXPECT_EQ(DeviceLimit::Of(kCard, kCard / 2, 1.0), kCard / 2);
  EXPECT_EQ(DeviceLimit::Of(kCard, 0, .25), kCard / 4);
  EXPECT_EQ(DeviceLimit::Of(kCard, 2 * kCard, .25), kCard / 4);
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/0);
  limit.SetFraction(.5);
  EXPECT_EQ(limit.Allowed(), kCard / 2);
  EXPECT_EQ(limit.Now(), kCard / 2);
}

// As a program takes it of what torch.cuda.mem_get_info() calls the total.
TEST_F(DeviceLimitTest, TheFractionIsOfGpuLimit) {
  EXPECT_EQ(DeviceLimit::Of(kCard, kCard / 2, .25), kCard / 8);
  EXPECT_EQ(DeviceLimit::Of(kCard, kCard / 2, .75), kCard / 2 / 4 * 3);
  EXPECT_EQ(DeviceLimit::Of(kCard, kCard / 2, 0.), 0u);
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/kCard / 4);
  limit.SetFraction(.5);
  EXPECT_EQ(limit.Allowed(), kCard / 8);
  limit.SetFraction(1.);
  EXPECT_EQ(limit.Allowed(), kCard / 4);
}

TEST_F(DeviceLimitTest, OnceTheCardRefusedWhatItHasForUs) {
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/0);
  EXPECT_EQ(limit.Now(), kCard);
  EXPECT_TRUE(limit.Follow(/*refused=*/true, /*ours=*/0)) << "it looked";
  const Bytes free = device_->GetMemoryInfo()->free;
  EXPECT_EQ(limit.Most(), free);
  EXPECT_EQ(limit.Now(), free - kHeadroom);
  EXPECT_FALSE(limit.Follow(/*refused=*/false, 0)) << "not due again";
}

TEST_F(DeviceLimitTest, TheHeadroomIsTakenForWhoWouldBeRefused) {
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/0);
  ASSERT_TRUE(limit.Look(0));
  const Bytes now = limit.Now();
  bool raised = false;
  EXPECT_FALSE(limit.Raise(0, &raised)) << "no look was needed";
  EXPECT_TRUE(raised);
  EXPECT_EQ(limit.Now(), now + kHeadroom);
  // The other process gave memory back since: seen by a look.
  cudasim_take_memory(0, kOthers / 2);
  EXPECT_TRUE(limit.Raise(0, &raised));
  EXPECT_TRUE(raised);
  EXPECT_EQ(limit.Now(), now + kHeadroom + kOthers / 2);
}

TEST_F(DeviceLimitTest, WhatTheProgramForbidsIsNotLookedFor) {
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/kCard / 4);
  bool fits = true, raised = true;
  EXPECT_FALSE(limit.CouldHold(kCard / 2, 0, &fits));
  EXPECT_FALSE(fits);
  EXPECT_FALSE(limit.Raise(0, &raised));
  EXPECT_FALSE(raised);
}

TEST_F(DeviceLimitTest, ALookIsTakenBeforeARefusal) {
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/0);
  ASSERT_TRUE(limit.Look(0));
  const Bytes most = limit.Most();
  bool fits = false;
  EXPECT_TRUE(limit.CouldHold(most + kMiB, 8 * kMiB, &fits));
  EXPECT_TRUE(fits) << "8 MiB are ours by now";
}

TEST_F(DeviceLimitTest, WhatTheDriverDoesNotSayChangesNothing) {
  DeviceLimit limit(*device_, kCard, /*gpu_limit=*/0);
  ASSERT_EQ(cudasim_fail("cudaMemGetInfo", 1, 999, /*forever=*/1), 0);
  EXPECT_FALSE(limit.Look(0));
  EXPECT_EQ(limit.Now(), kCard);
}

}  // namespace
}  // namespace stratalloc
