// SPDX-License-Identifier: Apache-2.0
// What is told of one device, and which sum is said not to hold where one does
// not. Why bytes stay is in staying_test.cc.
#include "allocator/explain/device_reports.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

class DeviceReportsTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    reports_.emplace(parts());
  }
  void TearDown() override {
    EXPECT_EQ(WhatIsWrong(), "");
    DevicePartsTest::TearDown();
  }
  DeviceReports& reports() { return *reports_; }
  std::string WhatIsWrong() {
    const Status status = reports().CheckInvariants();
    if (status) return "";
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    return status.error().message;
  }
  static PoolKey Transient() {
    PoolKey key = kLarge;
    key.lifetime = LifetimeClass::kTransient;
    return key;
  }
  // To the host, without its bytes.
  void Evict(HandleRef handle) {
    Residency& residency = parts().residency;
    ASSERT_TRUE(residency.Mark(residency.Choose(handle).value()));
    std::vector<Departure> leaving = {{.handle = handle}};
    ASSERT_TRUE(residency.BeginEvict(&leaving[0], ~std::uint64_t{0}));
    residency.CommitEvict(&leaving, MoveEvents(DeviceIndex{0}, parts().moves));
    ASSERT_EQ(handle.state(), HandleState::kHost);
  }
  static std::vector<HandleRef> Of(Block* block) {
    std::vector<HandleRef> handles;
    ForEachHandleOf(
        *block, [&](HandleRef handle, Bytes) { handles.push_back(handle); });
    return handles;
  }
  static Bytes Now(const StatArray& stat) {
    return static_cast<Bytes>(stat.stats[0].current);
  }

  std::optional<DeviceReports> reports_;
};

TEST_F(DeviceReportsTest, ABlockIsOwnedUntilItsFreeAndLivesUntilItsEnd) {
  const StreamId stream = NewStream();
  Block* const block = Malloc(kLarge, 3 * kMiB);
  const Address address = block->address;
  EXPECT_TRUE(reports().Owns(address));
  EXPECT_FALSE(reports().Owns(address + 512)) << "not its base";
  BlockView view{};
  ASSERT_TRUE(reports().FindLive(address + 512, &view));
  EXPECT_EQ(view.address, address);
  EXPECT_EQ(view.bytes, 3 * kMiB);
  EXPECT_EQ(view.charge, kOwner);
  cudasim_hold_streams(1);
  block->streams.push_back(stream);
  Work(stream);
  Free(block);
  EXPECT_FALSE(reports().Owns(address));
  ASSERT_TRUE(reports().FindLive(address, &view)) << "its stream has work";
  EXPECT_EQ(view.state, BlockState::kPending);
  cudasim_hold_streams(0);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  parts().blocks.Process();
  EXPECT_FALSE(reports().FindLive(address, &view));
  EXPECT_EQ(reports().BaseAllocation(address).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(reports().BaseAllocation(512).error().code, ErrorCode::kNotFound);
}

// Accounting's part: how often its peaks were reset.
class ResetAccounts final : public ChargeAccounts {
 public:
  ChargeAccount& Of(DeviceIndex, Charge) override { return account; }
  void ResetPeaks(DeviceIndex) override { ++resets; }

  DeviceAccount device;
  ScopeAccount scope;
  ChargeAccount account{&device, &scope};
  int resets = 0;
};

TEST_F(DeviceReportsTest, APeakIsResetToWhatIsNowAndTheAccountsWithIt) {
  Block* const first = Malloc(kLarge, 3 * kMiB);
  Free(Malloc(kLarge, 5 * kMiB));
  EXPECT_EQ(reports().Stats().allocated_bytes.stats[0].peak, 8 << 20);
  ResetAccounts accounts;
  parts().accounts.Use(&accounts);
  reports().ResetPeakStats();
  parts().accounts.Use(&accounts_);
  EXPECT_EQ(accounts.resets, 1);
  const DeviceStats stats = reports().Stats();
  EXPECT_EQ(stats.allocated_bytes.stats[0].peak, 3 << 20);
  EXPECT_EQ(stats.reserved_bytes.stats[0].peak, 8 << 20)
      << "what is cached is reserved";
  EXPECT_EQ(stats.allocated_bytes.stats[0].allocated, 8 << 20);
  reports().ResetAccumulatedStats();
  EXPECT_EQ(reports().Stats().allocated_bytes.stats[0].allocated, 0);
  EXPECT_EQ(Now(reports().Stats().allocated_bytes), 3 * kMiB);
  Free(first);
}

TEST_F(DeviceReportsTest, WhatABinHasIsCachedToo) {
  Block* const block = Malloc(kLarge, 3 * kMiB);
  EXPECT_EQ(reports().LargestCached(), kMiB) << "the rest of its handles";
  // As the fast path frees it.
  parts().live.FreeAtOnce(PoolKind::kLarge, block->size, block->requested);
  block->account->Free(block->size);
  ASSERT_TRUE(block->segment->pool->bins().Put(block));
  block->state = BlockState::kBinned;
  EXPECT_EQ(reports().LargestCached(), 4 * kMiB);
}

TEST_F(DeviceReportsTest, ASnapshotTellsOfDeviceMemoryOnly) {
  Block* const block = Malloc(kLarge, 3 * kHandle);
  const std::vector<HandleRef> handles = Of(block);
  std::vector<SegmentView> views = reports().Snapshot();
  ASSERT_EQ(views.size(), 1u);
  ASSERT_EQ(views[0].blocks.size(), 1u);
  EXPECT_EQ(views[0].bytes, 3 * kHandle);
  EXPECT_EQ(views[0].blocks[0].bytes, 3 * kHandle);
  Evict(handles[1]);
  views = reports().Snapshot();
  ASSERT_EQ(views.size(), 2u) << "around what is away";
  Bytes bytes = 0, requested = 0;
  for (const SegmentView& view : views) {
    ASSERT_EQ(view.blocks.size(), 1u);
    EXPECT_EQ(view.blocks[0].state, BlockState::kAllocated);
    EXPECT_EQ(view.blocks[0].bytes, view.bytes);
    bytes += view.bytes;
    requested += view.blocks[0].requested;
  }
  EXPECT_EQ(views[0].address, handles[0].address());
  EXPECT_EQ(views[1].address, handles[2].address());
  EXPECT_EQ(bytes, Reserved());
  EXPECT_EQ(requested, Now(reports().Stats().requested_bytes));
  Free(block);
}

TEST_F(DeviceReportsTest, WhyBytesStayAddsUpWhereSomeAreAway) {
  Block* const transient = Malloc(Transient(), 3 * kMiB);
  Block* const block = Malloc(kLarge, 3 * kHandle);
  const std::vector<HandleRef> handles = Of(block);
  Evict(handles[1]);
  handles[2].use().pins.fetch_add(1);
  const Staying staying = reports().Stays();
  EXPECT_EQ(staying.total(), Now(reports().Stats().allocated_bytes));
  EXPECT_EQ(staying.of(StayReason::kActivation), 3 * kMiB);
  EXPECT_EQ(staying.of(StayReason::kOperator), kHandle);
  EXPECT_EQ(staying.of(StayReason::kEvictable), kHandle);
  EXPECT_EQ(reports().StayingBytes(), 3 * kMiB + kHandle);
  handles[1].use().pins.fetch_add(1);
  EXPECT_EQ(reports().StayingBytes(), 3 * kMiB + kHandle)
      << "what is away takes no room";
  for (const int i : {1, 2}) handles[i].use().pins.fetch_sub(1);
  Free(block);
  Free(transient);
}

TEST_F(DeviceReportsTest, ASumThatDoesNotHoldIsNamed) {
  Block* const block = Malloc(kLarge, 3 * kMiB);
  std::int64_t& reserved = parts().stats.reserved_bytes.stats[0].current;
  reserved += 512;
  EXPECT_EQ(WhatIsWrong(), "invariant broken: reserved_bytes = mapped handles");
  reserved -= 512;
  const auto move = [&](std::int64_t allocated, std::int64_t active) {
    parts().live.Move(PoolKind::kLarge, allocated, active, 0);
  };
  move(512, 512);
  EXPECT_EQ(WhatIsWrong(),
            "invariant broken: allocated_bytes = allocated bytes on the "
            "device");
  move(-512, -512);
  move(0, 512);
  EXPECT_EQ(WhatIsWrong(),
            "invariant broken: active_bytes = live bytes on the device");
  move(0, -512);
  std::uint32_t& live = Of(block)[0].entry().live;
  ++live;
  EXPECT_NE(WhatIsWrong(), "") << "a handle counts a block too many";
  --live;
  HandleUse& use = Of(block)[1].use();
  use.pins.fetch_add(1);
  EXPECT_EQ(WhatIsWrong(), "") << "an operator's pin";
  use.pins.fetch_sub(1);
  const BlockPin pin = parts().pins.Pin(*block, PinReason::kProgram);
  use.pins.fetch_sub(1);
  EXPECT_NE(WhatIsWrong(), "") << "a pinned block's handle is not pinned";
  use.pins.fetch_add(1);
  EXPECT_TRUE(parts().pins.Unpin(pin, /*unobserved=*/false));
  parts().pins.Pin(*block, PinReason::kPointer);
  auto& pointers = block->pins.of(PinReason::kPointer);
  const auto count = std::exchange(pointers, 0);
  EXPECT_EQ(WhatIsWrong(),
            "invariant broken: what data_ptr() gave away is listed");
  pointers = count;
  Free(block);
}

}  // namespace
}  // namespace stratalloc
