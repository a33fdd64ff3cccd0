// SPDX-License-Identifier: Apache-2.0
// The fixture of tests that move pages without an engine: one simulated device
// in async mode, its allocator, lower copies, and pages of one block each.
//
// Thread-safety: one thread. Lifetime: of one test; the simulator is the
// process's. Errors: those of the fixture itself fail the test.
// Invariants: at the end nothing is leaked and no violation was counted.
#ifndef STRATALLOC_TIERING_ENGINE_LEAVE_FIXTURE_TEST_H_
#define STRATALLOC_TIERING_ENGINE_LEAVE_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"
#include "tiering/engine/leaver.h"
#include "tiering/policy/victims.h"

namespace stratalloc {

class LeaveFixture : public testing::Test {
 protected:
  static constexpr Bytes kPage = 2 * kMiB;
  static constexpr std::int64_t kSecond = 1'000'000'000;

  void Open(Bytes capacity, Bytes host_budget, Bytes disk_budget = 0) {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_set_capacity(0, capacity);
    auto device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device.has_value());
    DeviceAllocator::Options options;
    options.host_budget = host_budget;
    auto made = DeviceAllocator::Create(*device, options);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    allocator_ = std::move(*made);
    const Status prepared = state_.Prepare(*allocator_);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    LowerCopies::Options below;
    below.host_budget = host_budget;
    below.disk_budget = disk_budget;
    if (disk_budget > 0) below.disk_dir = testing::TempDir();
    lower_.emplace(below);
    ASSERT_TRUE(lower_->Open(*allocator_, state_.arbiter, kPage).has_value());
    all_.Add(&state_);
  }
  void TearDown() override {
    cudasim_hold_streams(0);
    for (Address block : blocks_) {
      EXPECT_TRUE(allocator_->Free(block).has_value());
    }
    lower_->CollectDropped(*allocator_);
    EXPECT_TRUE(lower_->all(*allocator_).empty()) << "copies of nothing";
    lower_->Close();
    state_.Close();
    lower_.reset();
    allocator_.reset();  // may ask the streams
    for (StreamId stream : streams_) {
      cudaStreamDestroy(reinterpret_cast<cudaStream_t>(Raw(stream)));
    }
    EXPECT_EQ(cudasim_violation_count(), 0);
    char text[1024] = "";
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }

  // A page with one block, every byte of it `value`.
  HandleRef Malloc(int value) {
    auto block = allocator_->Malloc(
        {kPage, kDefaultStream, LifetimeClass::kPersistent, {}});
    EXPECT_TRUE(block.has_value()) << block.error().message;
    if (!block) return {};
    blocks_.push_back(block->address);
    Set(allocator_->table().RefOf(block->address), value);
    return allocator_->table().RefOf(block->address);
  }
  std::vector<HandleRef> Pages(int count) {
    std::vector<HandleRef> pages;
    for (int i = 0; i < count; ++i) pages.push_back(Malloc(i + 1));
    return pages;
  }
  void Free(HandleRef page) {
    EXPECT_TRUE(allocator_->Free(page.address()).has_value());
    std::erase(blocks_, page.address());
  }
  // Past the operators: nothing is noted.
  static void Set(HandleRef page, int value) {
    cudaMemset(reinterpret_cast<void*>(page.address()), value, kPage);
    cudaDeviceSynchronize();
  }
  static int LastByte(HandleRef page) {
    unsigned char byte = 0;
    cudaMemcpy(&byte, reinterpret_cast<const void*>(page.address() + kPage - 1),
               1, cudaMemcpyDeviceToHost);
    return byte;
  }

  // Chooses them and takes steps until nothing is under way. The bytes that
  // came free.
  Bytes Evict(std::span<const HandleRef> pages, Below below = Below::kEither) {
    Leaver leaver({state_, *lower_, all_});
    Status why;
    leaver.Choose(pages, below, std::make_shared<LeaveTally>(), &why);
    EXPECT_TRUE(why) << why.error().message;
    StepUntilIdle(leaver);
    return leaver.freed();
  }
  static void StepUntilIdle(Leaver& leaver) {
    while (!leaver.idle()) {
      leaver.Step();
      ASSERT_TRUE(leaver.Await(60 * kSecond)) << "a stream stands still";
    }
  }

  StreamId NewStream() {
    streams_.push_back(allocator_->device().CreateStream().value());
    return streams_.back();
  }
  std::uint64_t BitOf(StreamId stream) {
    return std::uint64_t{1} << allocator_->streams().BitOf(stream);
  }
  // An operator on `stream` read the page, and its kernel is enqueued.
  void UseOn(StreamId stream, HandleRef page) {
    Note(stream, page);
    const cudasim_access access{page.address(), kPage, 0};
    cudasim_note_access(reinterpret_cast<void*>(Raw(stream)), "kernel", &access,
                        1);
  }
  void Note(StreamId stream, HandleRef page) {
    const std::uint32_t now =
        allocator_->use_clock().fetch_add(HandleUse::kTick) + HandleUse::kTick;
    page.use().NoteOperator(BitOf(stream), false, now, kBurstTicks);
  }
  // A write of some bytes that `stream` runs once it is let.
  void EnqueueOn(StreamId stream, HandleRef page) {
    ASSERT_EQ(cudaMemsetAsync(reinterpret_cast<void*>(page.address()), 1, 512,
                              reinterpret_cast<cudaStream_t>(Raw(stream))),
              cudaSuccess);
  }

  std::unique_ptr<DeviceAllocator> allocator_;
  TieredDevice state_;
  std::optional<LowerCopies> lower_;
  EngineCounters& counters_ = state_.counters;
  DeviceList all_;
  std::vector<Address> blocks_;
  std::vector<StreamId> streams_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_LEAVE_FIXTURE_TEST_H_
