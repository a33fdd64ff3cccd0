// SPDX-License-Identifier: Apache-2.0
// A disk that does not answer stops the threads that need it, and no others.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr TierRule kDiskOnly{.host = false};

class EngineStuckDiskTest : public EngineTest {
 protected:
  void OpenWithDisk(int devices, std::chrono::nanoseconds deadline,
                    Bytes host_budget = 64 * kMiB) {
    Rig::Options options;
    options.disk_deadline = deadline;
    options.devices = devices;
    options.host_budget = host_budget;
    options.disk_budget = 64 * kMiB;
    options.disk_dir = testing::TempDir();
    Open(options);
  }
  Address LayerOn(std::size_t device) {
    auto block = rig_->device(device).Malloc(
        {kHandle, kDefaultStream, LifetimeClass::kPersistent, {}});
    EXPECT_TRUE(block.has_value());
    return block ? block->address : 0;
  }
  bool Restores(Address layer) {
    const AddressRange range{layer, kHandle};
    return rig_->engine().Restore(rig_->device(), {&range, 1}).has_value();
  }
  void KeepOffTheHost(Address layer) {
    const AddressRange range{layer, kHandle};
    EXPECT_TRUE(rig_->engine()
                    .SetRule(rig_->device(), {&range, 1}, kDiskOnly)
                    .has_value());
  }
};

TEST_F(EngineStuckDiskTest, EvictionOfAnotherDeviceToTheHostGoesOn) {
  OpenWithDisk(/*devices=*/2, minutes(10));
  const Address here = LayerOn(0), there = LayerOn(1);
  KeepOffTheHost(here);
  rig_->disk_faults().Hold(true);
  Bytes to_disk = 0;
  std::thread waits(
      [&] { to_disk = rig_->engine().Evict(rig_->device(), {}).value_or(0); });
  ASSERT_TRUE(Eventually([&] { return rig_->disk_faults().waiting() == 1; }));
  std::atomic<bool> done{false};
  Bytes to_host = 0, back = 0;
  std::thread goes([&] {
    to_host = rig_->engine().Evict(rig_->device(1), {}).value_or(0);
    back = rig_->engine().Restore(rig_->device(1), {}).value_or(0);
    done.store(true);
  });
  EXPECT_TRUE(Eventually([&] { return done.load(); }));
  EXPECT_EQ(rig_->engine().HostUsed(), kHandle) << "reports do not wait";
  rig_->disk_faults().Hold(false);
  waits.join();
  goes.join();
  EXPECT_EQ(to_disk, kHandle);
  EXPECT_EQ(to_host, kHandle);
  EXPECT_EQ(back, kHandle);
  EXPECT_TRUE(rig_->engine().RestoreAll().has_value());
  Free(here);
  EXPECT_TRUE(rig_->device(1).Free(there).has_value());
}

// A demotion to the disk takes its time, and holds no other device's arbiter.
TEST_F(EngineStuckDiskTest, RestoreOfAnotherDeviceFromTheHostGoesOn) {
  OpenWithDisk(/*devices=*/2, minutes(10), /*host_budget=*/2 * kHandle);
  const Address there = LayerOn(1);
  ASSERT_EQ(rig_->engine().Evict(rig_->device(1), {}).value_or(0), kHandle);
  const Address first = LayerOn(0);
  ASSERT_EQ(Evict(), kHandle);
  ASSERT_EQ(rig_->engine().HostUsed(), 2 * kHandle) << "full";
  const Address second = LayerOn(0);
  rig_->disk_faults().Hold(true);
  std::thread waits([&] { EXPECT_EQ(Evict(), kHandle); });
  ASSERT_TRUE(Eventually([&] { return rig_->disk_faults().waiting() == 1; }));
  std::atomic<bool> done{false};
  std::thread goes([&] {
    EXPECT_TRUE(rig_->engine().Restore(rig_->device(1), {}).has_value());
    done.store(true);
  });
  EXPECT_TRUE(Eventually([&] { return done.load(); }));
  rig_->disk_faults().Hold(false);
  waits.join();
  goes.join();
  EXPECT_TRUE(rig_->engine().RestoreAll().has_value());
  Free(first);
  Free(second);
  EXPECT_TRUE(rig_->device(1).Free(there).has_value());
}

TEST_F(EngineStuckDiskTest, LateWriteLeavesThePageOnTheDevice) {
  OpenWithDisk(/*devices=*/1, milliseconds(500));
  const Address layer = LayerOn(0);
  Write(layer, kHandle, 7);
  KeepOffTheHost(layer);
  rig_->disk_faults().Hold(true);
  EXPECT_EQ(Evict(), 0u);
  const std::string why = rig_->engine().LastRefusal(DeviceIndex{0});
  EXPECT_NE(why.find("did not answer within 0.5 s"), std::string::npos) << why;
  EXPECT_EQ(Evict(), 0u) << "at once: it has not answered yet";
  ExpectReads(layer, kHandle, 7);
  rig_->disk_faults().Hold(false);
  EXPECT_TRUE(Eventually([&] { return Evict() == kHandle; }))
      << "it answers again";
  EXPECT_TRUE(Eventually([&] { return Restores(layer); }));
  ExpectReads(layer, kHandle, 7);
  Free(layer);
}

TEST_F(EngineStuckDiskTest, LateReadLosesNothingAndIsReadOnceItAnswers) {
  OpenWithDisk(/*devices=*/1, milliseconds(500));
  const std::vector<Address> layers = Layers(2);
  const AddressRange range{layers[0], kHandle};
  ASSERT_EQ(rig_->engine().Evict(rig_->device(), {&range, 1}, Below::kDisk),
            kHandle);
  rig_->disk_faults().Hold(true);
  const Result<Bytes> late =
      rig_->engine().Restore(rig_->device(), {&range, 1});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kIo);
  const Result<bool> reads = rig_->Reads(layers[0], kHandle, 1);
  ASSERT_FALSE(reads) << "an operator raises";
  EXPECT_NE(reads.error().message.find("has not answered"), std::string::npos)
      << reads.error().message;
  ExpectReads(layers[1], kHandle, 2);
  EXPECT_EQ(EvictOnly(layers[1], kHandle), kHandle) << "to the host";
  EXPECT_NE(rig_->engine().HostUsed(), 0u);
  rig_->disk_faults().Hold(false);
  EXPECT_TRUE(Eventually([&] { return Restores(layers[0]); }));
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
