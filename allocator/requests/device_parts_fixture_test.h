// SPDX-License-Identifier: Apache-2.0
// The parts of one device's allocator on a small simulated device, without
// DeviceAllocator and by one thread: for tests of one part among real
// neighbours.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_PARTS_FIXTURE_TEST_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_PARTS_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "allocator/requests/device_parts.h"
#include "allocator/requests/two_accounts_test.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {

constexpr Bytes kCard = 64 * kMiB;
constexpr Bytes kHandle = 2 * kMiB;

class DevicePartsTest : public testing::Test {
 protected:
  static constexpr PoolKey kLarge{.lifetime = LifetimeClass::kPersistent,
                                  .kind = PoolKind::kLarge};

  void SetUp() override { Open(); }
  void Open() {
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_set_capacity(0, kCard);
    const Device device = Device::Open(DeviceIndex{0}).value();
    parts_ = std::make_unique<DeviceParts>(
        device, DeviceOptions{.segment_least = 8 * kMiB}, kCard,
        // Without virtual memory management there is none.
        device.has_virtual_memory()
            ? HandleTable::Create(device, kCard, kHandle).value()
            : HandleTable());
    parts_->accounts.Use(&accounts_);
  }
  void Close() {
    DeviceParts& p = *parts_;
    EXPECT_TRUE(p.device.SynchronizeDevice().has_value());
    p.free_handles.EndRelease(p.free_handles.BeginRelease(~Bytes{0}, PoolId{}),
                              /*fenced=*/true);
    p.unmanaged.TakeEmpty();
    p.pages.ReleaseFree(p.captures.AskStreams());
    p.placement.DropEmptySegments();
    if (p.device.has_virtual_memory()) p.table.Destroy(p.device);
    parts_.reset();
  }
  // Every block must have been freed.
  void TearDown() override {
    cudasim_clear_faults();
    EXPECT_EQ(Broken(), "");
    EXPECT_EQ(parts_->live.allocated_bytes(), 0u);
    Close();
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    EXPECT_EQ(accounts_.device.on_device.load(), 0u);
    EXPECT_EQ(cudasim_violation_count(), 0);
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }

  DeviceParts& parts() { return *parts_; }
  std::string Broken() {
    parts().blocks.EmptyBins();
    const char* broken = parts().heap.CheckInvariants();
    return broken == nullptr ? "" : broken;
  }
  StreamId NewStream() {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    streams_.push_back(stream);
    return StreamId{reinterpret_cast<std::uint64_t>(stream)};
  }
  // Work that is not done before somebody waits for it.
  static void Work(StreamId stream) {
    cudasim_note_access(reinterpret_cast<void*>(Raw(stream)), "kernel", nullptr,
                        0);
  }
  Placement::Found Search(const PoolKey& key, Bytes size, Bytes limit = kCard) {
    return parts().placement.Search(parts().placement.PoolOf(key), size, limit);
  }
  // A block that is handed out, wherever its memory comes from.
  Block* Malloc(const PoolKey& key, Bytes size) {
    Block* const block = Search(key, size).block;
    EXPECT_NE(block, nullptr);
    return parts().blocks.HandOut(block, size, size, kOwner);
  }
  void Free(Block* block) { parts().blocks.Free(block); }
  Bytes Reserved() {
    return static_cast<Bytes>(parts().stats.reserved_bytes.stats[0].current);
  }

  TwoAccounts accounts_;
  std::unique_ptr<DeviceParts> parts_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_PARTS_FIXTURE_TEST_H_
