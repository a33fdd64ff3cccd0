// SPDX-License-Identifier: Apache-2.0
// What tests of one device's allocator share: a small simulated device in async
// mode, the allocator on it, and the proof at the end that nothing is left.
#ifndef STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_FIXTURE_TEST_H_
#define STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/requests/two_accounts_test.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {

class DeviceAllocatorTest : public testing::Test {
 protected:
  void SetUp() override { Open(64 * kMiB); }
  void Open(Bytes capacity, DeviceAllocator::Options options = {}) {
    allocator_.reset();
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_set_seed(5);
    cudasim_set_capacity(0, capacity);
    auto device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    auto made = DeviceAllocator::Create(*device, options);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    allocator_ = std::move(*made);
    allocator_->SetAccounts(&recorder_);
  }
  void TearDown() override {
    cudasim_clear_faults();
    for (Address address : live_) {
      EXPECT_TRUE(allocator_->Free(address).has_value());
    }
    const Status status = allocator_->CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
    allocator_.reset();
    // After the allocator, as torch's own streams, which live for ever.
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    EXPECT_EQ(recorder_.device.on_device.load(), 0u);
    EXPECT_EQ(cudasim_violation_count(), 0);
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }
  StreamId NewStream() {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    streams_.push_back(stream);
    return StreamId{reinterpret_cast<std::uint64_t>(stream)};
  }
  Address Malloc(Bytes bytes, StreamId stream = kDefaultStream,
                 LifetimeClass lifetime = LifetimeClass::kPersistent) {
    auto block = allocator_->Malloc({bytes, stream, lifetime, kOwner});
    EXPECT_TRUE(block.has_value()) << block.error().message;
    if (!block) return 0;
    live_.push_back(block->address);
    return block->address;
  }
  void Free(Address address) {
    std::erase(live_, address);
    EXPECT_TRUE(allocator_->Free(address).has_value());
  }
  // A kernel on `stream` that uses the block.
  static void Use(Address address, Bytes bytes, StreamId stream) {
    const cudasim_access access{address, bytes, 1};
    cudasim_note_access(reinterpret_cast<void*>(Raw(stream)), "kernel", &access,
                        1);
  }
  DeviceAllocator& allocator() { return *allocator_; }
  Stat Of(const StatArray& a) { return a.stats[0]; }
  Bytes Reserved() {
    return static_cast<Bytes>(Of(allocator().Stats().reserved_bytes).current);
  }
  // That make, map or give back memory.
  static long Calls() {
    long calls = 0;
    for (const char* name : {"cuMemCreate", "cuMemRelease", "cuMemMap",
                             "cuMemUnmap", "cuMemSetAccess"}) {
      calls += cudasim_calls(name);
    }
    return calls;
  }

  TwoAccounts recorder_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::vector<cudaStream_t> streams_;
  std::vector<Address> live_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_FIXTURE_TEST_H_
