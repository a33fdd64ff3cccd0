// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/handle_pool.h"

#include <gtest/gtest.h>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;
constexpr Bytes kLimit = 16 * kMiB;
constexpr std::uint64_t kOne = 1, kTwo = 2;

bool Idle(std::uint64_t) { return true; }
// Every stream has work, but memory may go back.
bool Busy(std::uint64_t streams) { return streams == 0; }

class HandlePoolTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    cudasim_set_capacity(0, 64 * kMiB);
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    pool_ = std::make_unique<HandlePool>(*device_);
    base_ = device_->ReserveAddress(4 * kHandle).value();
  }
  void TearDown() override {
    EXPECT_TRUE(pool_->CheckInvariants());
    pool_->ReleaseFree(Idle);
    EXPECT_EQ(pool_->created_bytes(), 0u);
    EXPECT_TRUE(device_->FreeAddress(base_, 4 * kHandle));
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }
  PhysicalMemory* Take(std::uint64_t own, const StreamsIdle& idle) {
    auto memory = pool_->Take(kHandle, kLimit, own, idle);
    EXPECT_TRUE(memory.has_value());
    return memory ? *memory : nullptr;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<HandlePool> pool_;
  Address base_ = 0;
  PhysicalMemory* slots_[4] = {};
};

TEST_F(HandlePoolTest, OneMemoryIsMappedAtSeveralAddresses) {
  PhysicalMemory* memory = Take(kOne, Idle);
  ASSERT_TRUE(pool_->Map(base_, memory, &slots_[0]));
  pool_->Put(memory, kOne);
  ASSERT_TRUE(pool_->TakeBack(memory, kOne, Busy));
  ASSERT_TRUE(pool_->Map(base_ + kHandle, memory, &slots_[1]));
  EXPECT_EQ(slots_[0], memory);
  EXPECT_EQ(slots_[1], memory);
  EXPECT_EQ(cudasim_live_mappings(), 2);
  pool_->Unmap(&slots_[0]);
  EXPECT_EQ(slots_[0], nullptr);
  EXPECT_EQ(cudasim_live_mappings(), 1);
  pool_->Put(memory, 0);
  // Releasing takes every mapping along.
  EXPECT_EQ(pool_->ReleaseFree(Idle), kHandle);
  EXPECT_EQ(slots_[1], nullptr);
  EXPECT_EQ(cudasim_live_mappings(), 0);
}

TEST_F(HandlePoolTest, ARunIsUnmappedAtOnceInAnyOrder) {
  PhysicalMemory* memory[3];
  for (int i = 0; i < 3; ++i) memory[i] = Take(kOne, Idle);
  ASSERT_TRUE(pool_->Map(base_ + 3 * kHandle, memory[0], &slots_[3]));
  ASSERT_TRUE(pool_->Map(base_ + kHandle, memory[1], &slots_[1]));
  ASSERT_TRUE(pool_->Map(base_, memory[2], &slots_[0]));
  const long calls = cudasim_calls("cuMemUnmap");
  // The run that is refused stays; the other goes.
  ASSERT_EQ(cudasim_fail("cuMemUnmap", 1, 1, /*forever=*/0), 0);
  const Status status = pool_->Unmap({&slots_[3], &slots_[1], &slots_[0]});
  cudasim_clear_faults();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(cudasim_calls("cuMemUnmap"), calls + 2);
  EXPECT_EQ(slots_[0], memory[2]);
  EXPECT_EQ(slots_[1], memory[1]);
  EXPECT_EQ(slots_[3], nullptr);
  EXPECT_EQ(cudasim_live_mappings(), 2);
  EXPECT_TRUE(pool_->Unmap({&slots_[1], &slots_[0]}));
  EXPECT_EQ(cudasim_calls("cuMemUnmap"), calls + 3);
  EXPECT_EQ(cudasim_live_mappings(), 0);
  for (PhysicalMemory* one : memory) pool_->Put(one, 0);
}

TEST_F(HandlePoolTest, WhatGoesBackIsUnmappedByRuns) {
  PhysicalMemory* memory[4];
  for (int i = 0; i < 4; ++i) {
    memory[i] = Take(kOne, Idle);
    ASSERT_TRUE(pool_->Map(base_ + i * kHandle, memory[i], &slots_[i]));
  }
  for (PhysicalMemory* one : memory) pool_->Put(one, 0);
  const long calls = cudasim_calls("cuMemUnmap");
  // Freed last, released first: 3 and 2.
  EXPECT_EQ(pool_->ReleaseFree(Idle, /*keep=*/2 * kHandle), 2 * kHandle);
  EXPECT_EQ(cudasim_calls("cuMemUnmap"), calls + 1);
  EXPECT_EQ(slots_[1], memory[1]);
  EXPECT_EQ(slots_[2], nullptr);
  // What is not released stays free, and is whole.
  ASSERT_EQ(cudasim_fail("cuMemRelease", 2, 1, /*forever=*/0), 0);
  EXPECT_EQ(pool_->ReleaseFree(Idle), kHandle);
  cudasim_clear_faults();
  EXPECT_EQ(pool_->created_bytes(), kHandle);
  EXPECT_TRUE(pool_->CheckInvariants());
  EXPECT_EQ(pool_->ReleaseFree(Idle), kHandle);
}

TEST_F(HandlePoolTest, OnlyWorkInOrderMayFollowAtOnce) {
  PhysicalMemory* memory = Take(kOne, Idle);
  pool_->Put(memory, kOne);
  EXPECT_FALSE(pool_->TakeBack(memory, kTwo, Busy));
  PhysicalMemory* other = Take(kTwo, Busy);  // new: the free one is in use
  EXPECT_NE(other, memory);
  EXPECT_EQ(pool_->created_bytes(), 2 * kHandle);
  EXPECT_EQ(Take(kOne, Busy), memory);
  pool_->Put(memory, kOne | kTwo);
  EXPECT_FALSE(pool_->TakeBack(memory, kOne, Busy));
  EXPECT_TRUE(pool_->TakeBack(memory, kOne, Idle));
  pool_->Put(memory, kOne);
  pool_->Put(other, kTwo);
}

// Where it was used last is of no meaning to whoever takes it.
TEST_F(HandlePoolTest, WhatIsTakenIsUsedNowhereYet) {
  PhysicalMemory* memory = Take(kOne, Idle);
  memory->used_at = base_;
  pool_->Put(memory, 0);
  ASSERT_EQ(Take(kOne, Idle), memory);
  EXPECT_EQ(memory->used_at, 0u);
  pool_->Put(memory, 0);
}

TEST_F(HandlePoolTest, WhatWasWaitedForIsFree) {
  PhysicalMemory* one = Take(kOne, Idle);
  PhysicalMemory* two = Take(kOne, Idle);
  pool_->Put(one, kOne);
  const std::uint64_t until = pool_->last_put();
  pool_->Put(two, kOne);  // after the wait began
  EXPECT_EQ(pool_->used_streams(), kOne);
  pool_->Fenced(kOne, until);
  EXPECT_EQ(pool_->ReleaseFree(Busy), kHandle);
  EXPECT_FALSE(pool_->TakeBack(two, kTwo, Busy));
}

TEST_F(HandlePoolTest, NothingGoesBackDuringACapture) {
  pool_->Put(Take(kOne, Idle), 0);
  EXPECT_EQ(pool_->ReleaseFree([](std::uint64_t) { return false; }), 0u);
  EXPECT_EQ(pool_->free_bytes(), kHandle);
}

TEST_F(HandlePoolTest, TheLimitIsForWhatIsUsed) {
  std::vector<PhysicalMemory*> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(Take(kOne, Idle));
  EXPECT_FALSE(pool_->Take(kHandle, kLimit, kOne, Idle));
  for (PhysicalMemory* memory : taken) pool_->Put(memory, kOne);
  // Another size: the free ones make room, unless a stream is at them.
  EXPECT_FALSE(pool_->Take(2 * kHandle, kLimit, kOne, Busy));
  auto large = pool_->Take(2 * kHandle, kLimit, kOne, Idle);
  ASSERT_TRUE(large);
  EXPECT_EQ(pool_->created_bytes(), 2 * kHandle);
  pool_->Put(*large, 0);
}

}  // namespace
}  // namespace stratalloc
