// SPDX-License-Identifier: Apache-2.0
// The parts of one device's allocator on a small simulated device, connected as
// DeviceAllocator connects them, but without its lock: for tests of one part
// among real neighbours.
#ifndef STRATALLOC_ALLOCATOR_DEVICE_PARTS_FIXTURE_TEST_H_
#define STRATALLOC_ALLOCATOR_DEVICE_PARTS_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "allocator/checkpoints.h"
#include "allocator/free_handles.h"
#include "allocator/live_blocks.h"
#include "allocator/placement.h"
#include "allocator/two_accounts_test.h"
#include "tests/cudasim/control.h"
#include "tests/cudasim/cuda_calls.h"

namespace stratalloc {

constexpr Bytes kCard = 64 * kMiB;
constexpr Bytes kHandle = 2 * kMiB;

// Without `table` where the device has no virtual memory management.
struct DeviceParts {
  explicit DeviceParts(const Device& opened)
      : device(opened),
        table(device.has_virtual_memory()
                  ? HandleTable::Create(device, kCard, kHandle).value()
                  : HandleTable()) {}
  ~DeviceParts() {
    const StreamsIdle idle = captures.AskStreams();
    EXPECT_TRUE(device.SynchronizeDevice().has_value());
    free_handles.EndRelease(free_handles.BeginRelease(~Bytes{0}, PoolId{}),
                            /*fenced=*/true);
    plain.TakeEmpty();
    pages.ReleaseFree(idle);
    placement.DropEmptySegments();
    if (device.has_virtual_memory()) table.Destroy(device);
  }

  const Device device;
  HandleTable table;
  StreamTable streams;
  std::atomic<std::uint32_t> use_clock{1};
  SlowReasons slow;
  LiveCounters live;
  SegmentStats stats;
  History history;
  BlockHeap heap{table, stats, history};
  BlockPins pins{heap};
  RecentAccounts accounts{device.index()};
  PageStore pages{device};
  DeviceLimit limit{device, kCard, /*gpu_limit=*/0};
  PoolRoutes routes{device};
  PrivatePools private_pools{device, routes};
  EventPool events{device};
  DeferredFrees frees{device, events};
  BlockTraces traces{history, heap, device.index()};
  Captures captures{{device, streams, routes, private_pools, frees, slow}};
  Residency residency{{device, heap, pages, events, traces, live, stats}};
  PlainSegments plain{
      {device, private_pools, limit, heap, pages, traces, stats},
      /*tiering=*/true};
  LiveBlocks blocks{{heap, live, stats, history, traces, accounts, pins,
                     private_pools, captures, frees, residency, plain, streams,
                     use_clock, slow}};
  FreeHandles free_handles{
      {heap, pages, traces, stats, streams, private_pools, captures, blocks}};
  Placement placement{{table, heap, pages, traces, stats, private_pools,
                       captures, plain, blocks, free_handles},
                      {.tiering = true, .segment_bytes = 8 * kMiB}};
  Checkpoints checkpoints{{heap, private_pools, blocks}};
};

class DevicePartsTest : public testing::Test {
 protected:
  static constexpr PoolKey kLarge{.lifetime = LifetimeClass::kPersistent,
                                  .kind = PoolKind::kLarge};

  void SetUp() override { Open(); }
  void Open() {
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_set_capacity(0, kCard);
    parts_ =
        std::make_unique<DeviceParts>(Device::Open(DeviceIndex{0}).value());
    parts_->accounts.Use(&accounts_);
  }
  // Every block must have been freed.
  void TearDown() override {
    cudasim_clear_faults();
    EXPECT_EQ(Broken(), "");
    EXPECT_EQ(parts_->live.allocated_bytes(), 0u);
    parts_.reset();
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    EXPECT_EQ(accounts_.total.load(), 0u);
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

#endif  // STRATALLOC_ALLOCATOR_DEVICE_PARTS_FIXTURE_TEST_H_
