// SPDX-License-Identifier: Apache-2.0
// Positions that get memory and give it up, without a block.
#include "allocator/memory/page_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;
constexpr Bytes kLimit = 16 * kMiB;
constexpr Bytes kCard = 64 * kMiB;
constexpr std::uint64_t kOne = 1, kTwo = 2;

const StreamsIdle kIdle = [](std::uint64_t) { return true; };
// Every stream has work, but memory may go back.
const StreamsIdle kBusy = [](std::uint64_t streams) { return streams == 0; };

class PageStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    cudasim_set_capacity(0, kCard);
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    table_ = HandleTable::Create(*device_, kCard, kHandle).value();
    store_.emplace(*device_);
    region_ = &table_.region(/*evictable=*/true, PoolKind::kLarge);
  }
  void TearDown() override {
    cudasim_clear_faults();
    EXPECT_EQ(Broken(), "");
    for (std::uint64_t i = 0; i < 8; ++i) {
      if (State(i) == HandleState::kResident) GiveUp(i, 0, /*keeps=*/false);
    }
    store_->ReleaseFree(kIdle);
    EXPECT_EQ(store_->ours(), 0u);
    store_.reset();
    table_.Destroy(*device_);
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }

  HandleRef At(std::uint64_t index) { return {region_, index}; }
  HandleState State(std::uint64_t index) { return At(index).entry().state; }
  PageStore::Answer Map(std::uint64_t from, std::uint64_t to,
                        const StreamsIdle& idle = kIdle,
                        std::uint64_t own = kOne, Bytes limit = kLimit) {
    return store_->Map(*region_, At(from).address(), At(to).address(), limit,
                       /*keeps=*/true, {own, idle});
  }
  void GiveUp(std::uint64_t index, std::uint64_t used_streams,
              bool keeps = true) {
    store_->GiveUp(At(index), At(index).entry().physical, used_streams, keeps);
  }
  // Of the positions that are on the device.
  std::string Broken() {
    Bytes mapped = 0;
    for (std::uint64_t i = 0; i < 8; ++i) {
      if (State(i) == HandleState::kResident) mapped += kHandle;
    }
    const char* broken = store_->CheckInvariants(mapped);
    return broken == nullptr ? "" : broken;
  }

  std::unique_ptr<Device> device_;
  HandleTable table_;
  std::optional<PageStore> store_;
  HandleRegion* region_ = nullptr;
};

TEST_F(PageStoreTest, WhatHasNoMemoryGetsItAndOneGrant) {
  ASSERT_EQ(Map(1, 2).mapped, PageStore::Mapped::kYes);
  const long grants = cudasim_calls("cuMemSetAccess");
  const PageStore::Answer answer = Map(1, 4);
  ASSERT_EQ(answer.mapped, PageStore::Mapped::kYes);
  ASSERT_EQ(answer.arrived.size(), 2u) << "one had memory";
  EXPECT_EQ(answer.arrived[0], At(2));
  EXPECT_EQ(cudasim_calls("cuMemSetAccess"), grants + 1);
  EXPECT_EQ(State(3), HandleState::kResident);
  EXPECT_TRUE(store_->IsGranted(At(3)));
  EXPECT_EQ(store_->used_bytes(), 3 * kHandle);
}

TEST_F(PageStoreTest, WhatIsMappedThereStillCostsNothing) {
  ASSERT_EQ(Map(0, 2).mapped, PageStore::Mapped::kYes);
  GiveUp(0, kOne);
  GiveUp(1, kOne);
  EXPECT_EQ(store_->used_bytes(), 0u);
  EXPECT_EQ(store_->ours(), 2 * kHandle);
  const long calls = cudasim_calls("cuMemMap") + cudasim_calls("cuMemCreate") +
                     cudasim_calls("cuMemSetAccess");
  // Its own work is in order: nobody is waited for.
  EXPECT_EQ(Map(0, 2, kBusy).mapped, PageStore::Mapped::kYes);
  EXPECT_EQ(cudasim_calls("cuMemMap") + cudasim_calls("cuMemCreate") +
                cudasim_calls("cuMemSetAccess"),
            calls);
}

TEST_F(PageStoreTest, AnotherStreamsWorkIsInTheWay) {
  ASSERT_EQ(Map(0, 1).mapped, PageStore::Mapped::kYes);
  GiveUp(0, kOne);
  EXPECT_EQ(Map(0, 1, kBusy, kTwo).mapped, PageStore::Mapped::kPlaceBusy);
  EXPECT_EQ(State(0), HandleState::kUnmapped);
  EXPECT_EQ(Broken(), "");
  EXPECT_EQ(Map(0, 1, kIdle, kTwo).mapped, PageStore::Mapped::kYes);
}

TEST_F(PageStoreTest, BeyondTheLimitNothingIsMapped) {
  const long calls = cudasim_calls("cuMemCreate");
  store_->BeginFetch(kHandle);
  store_->EndFetch(kHandle, /*came=*/true);
  const PageStore::Answer answer =
      Map(0, 4, kIdle, kOne, /*limit=*/3 * kHandle);
  EXPECT_EQ(answer.mapped, PageStore::Mapped::kNoMemory);
  EXPECT_EQ(answer.lacking, 2 * kHandle) << "unmanaged segments count";
  EXPECT_FALSE(answer.error.has_value());
  EXPECT_EQ(cudasim_calls("cuMemCreate"), calls);
  store_->NoteUnmanagedGone(kHandle);
  EXPECT_EQ(store_->used_bytes(), 0u);
}

TEST_F(PageStoreTest, ARefusalHalfWayLeavesNothingMapped) {
  ASSERT_EQ(cudasim_fail("cuMemCreate", 3, 2, /*forever=*/0), 0);
  const PageStore::Answer answer = Map(0, 4);
  cudasim_clear_faults();
  EXPECT_EQ(answer.mapped, PageStore::Mapped::kNoMemory);
  EXPECT_EQ(answer.lacking, 2 * kHandle);
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(State(i), HandleState::kUnmapped);
    EXPECT_EQ(At(i).entry().physical, nullptr);
  }
  EXPECT_EQ(store_->used_bytes(), 0u);
  EXPECT_EQ(cudasim_live_mappings(), 0);
}

TEST_F(PageStoreTest, AnErrorThatIsNotForWantOfMemoryIsTold) {
  ASSERT_EQ(cudasim_fail("cuMemMap", 2, 1, /*forever=*/0), 0);
  const PageStore::Answer answer = Map(0, 2);
  EXPECT_EQ(answer.mapped, PageStore::Mapped::kNoMemory);
  ASSERT_TRUE(answer.error.has_value());
  EXPECT_NE(answer.error->message.find("cuMemMap"), std::string::npos);
}

TEST_F(PageStoreTest, AGrantThatFindsNoPageTablesGetsWhatIsFreeHere) {
  ASSERT_EQ(Map(4, 5).mapped, PageStore::Mapped::kYes);
  GiveUp(4, 0);
  // Rights refused once, for want of memory; asked again after a release.
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, 2, /*forever=*/0), 0);
  const long released = cudasim_calls("cuMemRelease");
  EXPECT_EQ(Map(0, 2).mapped, PageStore::Mapped::kNoMemory)
      << "the free memory was taken for it: there is nothing to give";
  EXPECT_EQ(cudasim_calls("cuMemRelease"), released);
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, 2, /*forever=*/0), 0);
  EXPECT_EQ(Map(0, 1).mapped, PageStore::Mapped::kYes);
  EXPECT_GT(cudasim_calls("cuMemRelease"), released);
}

TEST_F(PageStoreTest, WhereBytesAreAwayNoMappingIsKept) {
  ASSERT_EQ(Map(0, 2).mapped, PageStore::Mapped::kYes);
  At(0).entry().live = 1;
  GiveUp(0, 0);
  EXPECT_EQ(At(0).entry().physical, nullptr) << "a stray access must fault";
  At(0).entry().live = 0;
  GiveUp(1, 0, /*keeps=*/false);
  EXPECT_EQ(At(1).entry().physical, nullptr);
}

TEST_F(PageStoreTest, WhatIsKeptGoesOnceNobodyUsesIt) {
  ASSERT_EQ(Map(0, 2).mapped, PageStore::Mapped::kYes);
  GiveUp(0, kOne);
  GiveUp(1, kTwo);
  const Address lo = At(0).address(), hi = At(2).address();
  EXPECT_FALSE(store_->DropKept(*region_, lo, hi, kBusy));
  EXPECT_EQ(cudasim_live_mappings(), 2);
  EXPECT_TRUE(store_->DropKept(*region_, lo, hi, kIdle));
  EXPECT_EQ(cudasim_live_mappings(), 0);
}

TEST_F(PageStoreTest, WhatIsTakenIsMappedOrPutBack) {
  PhysicalMemory* memory[2];
  for (PhysicalMemory*& one : memory) {
    one = store_->Take(kHandle, kLimit, kIdle).value();
  }
  EXPECT_EQ(Broken(), "") << "taken memory is accounted for";
  const HandleRef run[2] = {At(0), At(1)};
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, 2, /*forever=*/0), 0);
  EXPECT_FALSE(store_->MapTaken(run, memory));
  EXPECT_EQ(cudasim_live_mappings(), 0);
  EXPECT_EQ(Broken(), "");
  ASSERT_TRUE(store_->MapTaken(run, memory).has_value());
  for (HandleRef handle : run) {
    handle.entry().state.store(HandleState::kResident);
  }
  EXPECT_EQ(Broken(), "");
  PhysicalMemory* third = store_->Take(kHandle, kLimit, kIdle).value();
  store_->PutTaken(third);
  EXPECT_EQ(store_->used_bytes(), 2 * kHandle);
}

}  // namespace
}  // namespace stratalloc
