// SPDX-License-Identifier: Apache-2.0
// Finding a device by ordinal, by address and in the order of opening; of
// devices that the test owns, and without the process's own list.
#include "allocator/opened_devices.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

class OpenedDevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    for (int i = 0; i < static_cast<int>(made_.size()); ++i) {
      cudasim_set_capacity(i, 64 * kMiB);
      Result<Device> device = Device::Open(static_cast<DeviceIndex>(i));
      ASSERT_TRUE(device.has_value()) << device.error().message;
      auto made = DeviceAllocator::Create(*device, {});
      ASSERT_TRUE(made.has_value()) << made.error().message;
      made_[static_cast<std::size_t>(i)] = std::move(*made);
    }
  }
  DeviceAllocator& Made(std::size_t ordinal) { return *made_[ordinal]; }
  using Devices = std::vector<DeviceAllocator*>;
  Devices InOrder() const {
    const std::span<DeviceAllocator* const> devices = opened_.InOrder();
    return {devices.begin(), devices.end()};
  }

  std::array<std::unique_ptr<DeviceAllocator>, 3> made_;
  OpenedDevices opened_;
};

TEST_F(OpenedDevicesTest, NobodyIsFoundWhoIsNotOpened) {
  opened_.Add(Made(1));
  EXPECT_EQ(opened_.Find(0), nullptr);
  EXPECT_EQ(opened_.Find(2), nullptr);
  EXPECT_EQ(opened_.OwnerOf(Made(0).table().base()), nullptr);
  EXPECT_EQ(opened_.OwnerOf(0), nullptr);
}

// An ordinal may be any number that a program passes, -1 among them.
TEST_F(OpenedDevicesTest, WhatIsNoDeviceIsNotFound) {
  opened_.Add(Made(0));
  for (const int ordinal : {-1, -kMaxDevices, kMaxDevices, 1 << 30}) {
    EXPECT_EQ(opened_.Find(ordinal), nullptr) << ordinal;
  }
}

TEST_F(OpenedDevicesTest, EachIsFoundByItsOrdinalAndItsAddresses) {
  for (const auto& device : made_) opened_.Add(*device);
  for (int i = 0; i < 3; ++i) {
    DeviceAllocator* const device = &Made(static_cast<std::size_t>(i));
    EXPECT_EQ(opened_.Find(i), device);
    EXPECT_EQ(opened_.OwnerOf(device->table().base()), device);
    EXPECT_EQ(opened_.OwnerOf(device->table().end() - 1), device);
  }
}

TEST_F(OpenedDevicesTest, TheOrderIsThatOfOpening) {
  EXPECT_TRUE(InOrder().empty());
  opened_.Add(Made(2));
  const std::span<DeviceAllocator* const> first = opened_.InOrder();
  opened_.Add(Made(0));
  opened_.Add(Made(1));
  EXPECT_EQ(InOrder(), (Devices{&Made(2), &Made(0), &Made(1)}));
  ASSERT_EQ(first.size(), 1u) << "who looked before sees what was there";
  EXPECT_EQ(first[0], &Made(2));
}

// In the child of a fork.
TEST_F(OpenedDevicesTest, WhatIsForgottenIsFoundByNobody) {
  opened_.Add(Made(0));
  opened_.Add(Made(1));
  opened_.Forget();
  EXPECT_EQ(opened_.Find(0), nullptr);
  EXPECT_EQ(opened_.Find(1), nullptr);
  EXPECT_EQ(opened_.OwnerOf(Made(1).table().base()), nullptr);
  EXPECT_TRUE(InOrder().empty());
}

}  // namespace
}  // namespace stratalloc
