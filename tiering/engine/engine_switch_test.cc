// SPDX-License-Identifier: Apache-2.0
// Tiering that is switched off while the process runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "allocator/state/pin_poll.h"
#include "tiering/engine/engine_capture_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

class EngineSwitchTest : public EngineCaptureTest {
 protected:
  void Open(Bytes capacity, Bytes host_budget = 64 * kMiB,
            Bytes disk_budget = 0) {
    Rig::Options options;
    options.capacity = capacity;
    options.host_budget = host_budget;
    options.disk_budget = disk_budget;
    options.disk_dir = testing::TempDir();
    EngineTest::Open(options);
  }
  Bytes SwitchOff() {
    const Result<Bytes> back = rig_->engine().SwitchOff();
    EXPECT_TRUE(back.has_value()) << back.error().message;
    return back ? *back : 0;
  }
  Error Refusal() {
    const Result<Bytes> back = rig_->engine().SwitchOff();
    EXPECT_FALSE(back.has_value());
    return back ? Error{} : back.error();
  }
};

TEST_F(EngineSwitchTest, AllComesBackAndNothingLeavesFromThenOn) {
  Open(64 * kMiB);
  const std::vector<Address> layers = Layers(6);
  ASSERT_EQ(Evict(), 6 * kHandle);
  EXPECT_EQ(SwitchOff(), 6 * kHandle);
  ExpectLayers(layers);
  EXPECT_EQ(SwitchOff(), 0u) << "it is off";
  const Result<Bytes> evicted = rig_->engine().Evict(rig_->device(), {});
  ASSERT_FALSE(evicted.has_value());
  EXPECT_EQ(evicted.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(evicted.error().message, HasSubstr("disable() has switched"));
  EXPECT_EQ(Restore(), 0u);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
}

TEST_F(EngineSwitchTest, CopiesBelowTheDeviceAreFreed) {
  Open(64 * kMiB, 8 * kMiB, 64 * kMiB);
  const std::vector<Address> layers = Layers(8);
  ASSERT_EQ(Evict(), 8 * kHandle);
  ASSERT_GT(rig_->engine().HostUsed(), 0u);
  ASSERT_GT(rig_->engine().DiskUsed(), 0u);
  EXPECT_EQ(SwitchOff(), 8 * kHandle);
  EXPECT_EQ(rig_->engine().HostUsed(), 0u);
  EXPECT_EQ(rig_->engine().HostReserved(), 0u);
  EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineSwitchTest, RequestThatWouldNeedAnEvictionIsRefused) {
  Open(16 * kMiB);
  const std::vector<Address> layers = Layers(6);
  SwitchOff();
  EXPECT_FALSE(
      rig_->Malloc(8 * kMiB, kDefaultStream, LifetimeClass::kPersistent));
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineSwitchTest, WhatDoesNotFitIsNamedAndTieringGoesOn) {
  Open(16 * kMiB);
  std::vector<Address> layers = Layers(6);
  ASSERT_EQ(Evict(), 6 * kHandle);
  const std::vector<Address> others = {Malloc(5 * kHandle)};
  const Error refusal = Refusal();
  EXPECT_EQ(refusal.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refusal.message, HasSubstr("6.00 MiB of evicted memory, in whole "
                                         "pages, have no room on GPU 0"));
  EXPECT_THAT(refusal.message, HasSubstr("until then tiering goes on"));
  FreeAll(others);
  EXPECT_GT(Evict(), 0u) << "it goes on";
  SwitchOff();
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineSwitchTest, CaptureOfAnyThreadRefusesIt) {
  Open(64 * kMiB);
  const std::vector<Address> layers = Layers(2);
  ASSERT_EQ(Evict(), 2 * kHandle);
  const StreamId stream = rig_->NewStream();
  Begin(stream);
  EXPECT_THAT(Refusal().message, HasSubstr("a stream of GPU 0 captures"));
  std::thread([&] {
    EXPECT_THAT(Refusal().message, HasSubstr("a stream of GPU 0 captures"));
  }).join();
  End(stream);
  Release();
  EXPECT_EQ(SwitchOff(), 2 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

Engine* polled = nullptr;

// Evict() runs the pin poll between its first look and the arbiter's lock. Here
// the poll switches tiering off, as another thread may.
TEST_F(EngineSwitchTest, EvictionThatWaitedForTheArbiterMovesNothing) {
  Open(64 * kMiB);
  const std::vector<Address> layers = Layers(4);
  polled = &rig_->engine();
  PinPoll::Use([] { EXPECT_TRUE(polled->SwitchOff().has_value()); }, nullptr);
  const Result<Bytes> evicted = rig_->engine().Evict(rig_->device(), {});
  PinPoll::Use(nullptr, nullptr);
  EXPECT_EQ(SwitchOff(), 0u) << "it is off";
  EXPECT_EQ(evicted.has_value() ? *evicted : 0, 0u);
  for (Address layer : layers) {
    EXPECT_EQ(rig_->StateOf(layer), HandleState::kResident);
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

// Other threads bring layers back and send others out while it is switched off.
TEST_F(EngineSwitchTest, ThreadsThatAreStarvedMeanwhileLoseNothing) {
  Open(32 * kMiB);
  const std::vector<Address> layers = Layers(10);
  std::atomic<bool> off{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200 || !off; ++round) {
        const Address layer = layers[static_cast<std::size_t>(t + round) % 10];
        const std::vector<Access> access = {{layer, kHandle, false}};
        ASSERT_TRUE(rig_->engine().EnterOperator(kDefaultStream, "t", access));
        rig_->engine().LeaveOperator();
        const AddressRange range{layer, kHandle};
        (void)rig_->engine().Evict(rig_->device(), {&range, 1});
      }
    });
  }
  SwitchOff();
  off = true;
  for (std::thread& thread : threads) thread.join();
  for (Address layer : layers) {
    EXPECT_EQ(rig_->StateOf(layer), HandleState::kResident);
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
