// SPDX-License-Identifier: Apache-2.0
// The allocator of one device without tiering's engine: blocks, pools, stats,
// streams, limits, reports.
#include "allocator/device_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

TEST_F(DeviceAllocatorTest, SizesAreRoundedToAndAlignedAt512Bytes) {
  for (Bytes bytes : {1, 511, 512, 513, 100'000}) {
    auto block = allocator().Malloc(
        {bytes, kDefaultStream, LifetimeClass::kPersistent, kOwner});
    ASSERT_TRUE(block.has_value());
    EXPECT_EQ(block->bytes, RoundUp(bytes, 512));
    EXPECT_EQ(block->address % 512, 0u);
    live_.push_back(block->address);
  }
}

TEST_F(DeviceAllocatorTest, TheSmallestBlockThatFitsIsHandedOut) {
  const Address a = Malloc(8192);
  const Address keep1 = Malloc(512);
  const Address b = Malloc(4096);
  const Address keep2 = Malloc(512);
  const Address c = Malloc(2048);
  const Address keep3 = Malloc(512);
  (void)keep1, (void)keep2, (void)keep3;
  Free(a);
  Free(b);
  Free(c);
  EXPECT_EQ(Malloc(4000), b);
  EXPECT_EQ(Malloc(1024), c);
  EXPECT_EQ(Malloc(512), c + 1024) << "the rest of a split block";
  EXPECT_EQ(Malloc(5000), a);
}

TEST_F(DeviceAllocatorTest, NeighboursMergeInEveryOrderOfFrees) {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                           {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    const Address blocks[] = {Malloc(1024), Malloc(2048), Malloc(512)};
    for (int i : order) Free(blocks[i]);
    EXPECT_EQ(allocator().LargestCached(), 2 * kMiB);
    EXPECT_TRUE(allocator().CheckInvariants().has_value());
  }
}

TEST_F(DeviceAllocatorTest, FreeAndUnmappedSpaceJoinForALargerBlock) {
  const Address a = Malloc(3 * kMiB);  // two handles
  Free(a);
  EXPECT_EQ(Malloc(9 * kMiB), a);
  EXPECT_EQ(Of(allocator().Stats().reserved_bytes).current, 10 << 20);
}

TEST_F(DeviceAllocatorTest, StatsMeanWhatNativesMean) {
  const Address small = Malloc(1000), large = Malloc(3 * kMiB);
  DeviceStats s = allocator().Stats();
  EXPECT_EQ(Of(s.allocation).current, 2);
  EXPECT_EQ(s.allocation.stats[1].current, 1);
  EXPECT_EQ(s.allocation.stats[2].current, 1);
  EXPECT_EQ(Of(s.segment).current, 2);
  EXPECT_EQ(Of(s.requested_bytes).current, 1000 + (3 << 20));
  EXPECT_EQ(Of(s.allocated_bytes).current, 1024 + (3 << 20));
  EXPECT_EQ(Of(s.active_bytes).current, 1024 + (3 << 20));
  EXPECT_EQ(Of(s.reserved_bytes).current, 6 << 20);
  EXPECT_EQ(s.reserved_bytes.stats[1].current, 2 << 20);
  EXPECT_EQ(s.num_device_alloc, 3);
  Free(large);
  s = allocator().Stats();
  EXPECT_EQ(Of(s.allocated_bytes).current, 1024);
  EXPECT_EQ(Of(s.allocated_bytes).peak, 1024 + (3 << 20));
  EXPECT_EQ(Of(s.allocated_bytes).freed, 3 << 20);
  EXPECT_EQ(Of(s.reserved_bytes).current, 6 << 20) << "cached";
  allocator().ResetPeakStats();
  allocator().ResetAccumulatedStats();
  s = allocator().Stats();
  EXPECT_EQ(Of(s.allocated_bytes).peak, 1024);
  EXPECT_EQ(Of(s.allocated_bytes).allocated, 0);
  Free(small);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  s = allocator().Stats();
  EXPECT_EQ(Of(s.reserved_bytes).current, 0);
  EXPECT_EQ(Of(s.segment).current, 0);
  EXPECT_EQ(s.num_device_free, 3);
  EXPECT_EQ(cudasim_used(0), 0u);
}

TEST_F(DeviceAllocatorTest, ARecordedStreamDefersTheFree) {
  const StreamId side = NewStream();
  const Address a = Malloc(2 * kMiB);
  Use(a, 2 * kMiB, side);
  ASSERT_TRUE(allocator().RecordStream(a, side).has_value());
  Free(a);
  const DeviceStats s = allocator().Stats();
  EXPECT_EQ(Of(s.allocated_bytes).current, 0);
  EXPECT_EQ(Of(s.active_bytes).current, 2 << 20) << "in use by the stream";
  EXPECT_FALSE(allocator().Owns(a));
  ASSERT_TRUE(allocator().EmptyCache().has_value());  // waits for the stream
  EXPECT_EQ(Of(allocator().Stats().active_bytes).current, 0);
}

TEST_F(DeviceAllocatorTest, WithoutAnEventTheFreeWaitsForTheDevice) {
  const StreamId side = NewStream();
  for (const char* call : {"cudaEventCreateWithFlags", "cudaEventRecord"}) {
    const Address a = Malloc(2 * kMiB);
    Use(a, 2 * kMiB, side);
    ASSERT_TRUE(allocator().RecordStream(a, side).has_value());
    ASSERT_EQ(cudasim_fail(call, 1, 2, /*forever=*/1), 0);
    Free(a);
    cudasim_clear_faults();
    const Address b = Malloc(2 * kMiB);
    EXPECT_NE(a, b) << call << ": its stream still uses it";
    Use(b, 2 * kMiB, kDefaultStream);
    ASSERT_TRUE(allocator().EmptyCache().has_value());
    EXPECT_EQ(Of(allocator().Stats().active_bytes).current, 2 << 20);
    Free(b);
    ASSERT_TRUE(allocator().EmptyCache().has_value());
  }
}

TEST_F(DeviceAllocatorTest, WhatWasWaitedForIsHandedOutNotUnmappedFirst) {
  const StreamId side = NewStream();
  const Address kept = Malloc(40 * kMiB);
  const Address waited = Malloc(20 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(waited, side).has_value());
  Use(waited, 20 * kMiB, side);
  // No event: only a wait for the device proves that the stream is done.
  ASSERT_EQ(cudasim_fail("cudaEventRecord", 1, 2, /*forever=*/1), 0);
  Free(waited);
  cudasim_clear_faults();
  const auto before = allocator().Stats();
  const Address again = Malloc(20 * kMiB);  // no room beside the two
  EXPECT_EQ(again, waited);
  const auto after = allocator().Stats();
  EXPECT_EQ(after.num_device_free, before.num_device_free);
  EXPECT_EQ(after.num_device_alloc, before.num_device_alloc);
  EXPECT_EQ(after.num_alloc_retries, before.num_alloc_retries + 1);
  Free(kept);
}

TEST_F(DeviceAllocatorTest, CachedMemoryOfOtherPoolsIsTraded) {
  const StreamId side = NewStream();
  const Address a = Malloc(40 * kMiB);
  Use(a, 40 * kMiB, kDefaultStream);
  Free(a);
  // Of another stream, while a kernel may still use the freed bytes: the
  // simulator would call an unmap without a fence a violation.
  Malloc(50 * kMiB, side);
  EXPECT_LE(cudasim_used(0), 64 * kMiB);
  EXPECT_GT(allocator().Stats().num_device_free, 0);
}

TEST_F(DeviceAllocatorTest, OutOfMemorySpeaksAsNativeDoes) {
  Malloc(48 * kMiB);
  auto refused = allocator().Malloc(
      {32 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.error().message,
              HasSubstr("CUDA out of memory. Tried to allocate 32.00 MiB. GPU "
                        "0 has a total capacity of 64.00 MiB of which "));
  const DeviceStats s = allocator().Stats();
  EXPECT_EQ(s.num_ooms, 1);
  EXPECT_EQ(s.num_alloc_retries, 1);
  Malloc(8 * kMiB);  // what fits still does
  auto absurd = allocator().Malloc(
      {Bytes{1} << 61, kDefaultStream, LifetimeClass::kPersistent, kOwner});
  EXPECT_FALSE(absurd.has_value());
}

TEST_F(DeviceAllocatorTest, TheFractionLimitsWhatIsReserved) {
  EXPECT_EQ(allocator().fraction(), 1.0);
  allocator().SetFraction(0.5);
  EXPECT_EQ(allocator().limit(), 32 * kMiB);
  Malloc(30 * kMiB);
  auto refused = allocator().Malloc(
      {4 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message,
              HasSubstr("Tried to allocate 4.00 MiB."));
  allocator().SetFraction(1.0);
  Malloc(4 * kMiB);
}

TEST_F(DeviceAllocatorTest, ADriverWithoutMemoryIsOutOfMemoryNotWorse) {
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    // Rights are granted to a whole range at once.
    const int nth = std::string_view(call) == "cuMemSetAccess" ? 1 : 2;
    ASSERT_EQ(cudasim_fail(call, nth, 2, /*forever=*/1), 0);
    auto refused = allocator().Malloc(
        {9 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
    ASSERT_FALSE(refused.has_value()) << call;
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    cudasim_clear_faults();
    const Status status = allocator().CheckInvariants();
    EXPECT_TRUE(status.has_value()) << call << status.error().message;
  }
  Malloc(9 * kMiB);
}

// Nothing is left of a lost device: a smaller batch is no remedy.
TEST_F(DeviceAllocatorTest, ADeviceThatDoesNotAnswerIsNotOutOfMemory) {
  ASSERT_EQ(cudasim_fail("cuMemCreate", 1, 2, /*forever=*/1), 0);
  // CUDA_ERROR_UNKNOWN
  ASSERT_EQ(cudasim_fail("cudaMemGetInfo", 1, 999, /*forever=*/1), 0);
  auto refused = allocator().Malloc(
      {9 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
  cudasim_clear_faults();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kDevice);
  EXPECT_THAT(refused.error().message, HasSubstr("unknown error"));
  EXPECT_THAT(refused.error().message, HasSubstr("9.00 MiB could not be"));
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
}

TEST_F(DeviceAllocatorTest, AnyOtherDriverErrorIsToldAsItIs) {
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    const int nth = std::string_view(call) == "cuMemSetAccess" ? 1 : 2;
    // CUDA_ERROR_INVALID_VALUE
    ASSERT_EQ(cudasim_fail(call, nth, 1, /*forever=*/0), 0);
    auto failed = allocator().Malloc(
        {9 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
    cudasim_clear_faults();
    ASSERT_FALSE(failed.has_value()) << call << ": asked again";
    EXPECT_EQ(failed.error().code, ErrorCode::kDevice);
    EXPECT_THAT(failed.error().message, HasSubstr("CUDA driver error: "));
    EXPECT_THAT(failed.error().message, HasSubstr(call));
    EXPECT_THAT(failed.error().message, HasSubstr("invalid argument"));
    const Status status = allocator().CheckInvariants();
    EXPECT_TRUE(status.has_value()) << call << status.error().message;
  }
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
  EXPECT_EQ(allocator().Stats().num_alloc_retries, 0);
  Malloc(9 * kMiB);
}

// What is mapped and may not be used is not taken for memory.
TEST_F(DeviceAllocatorTest, AMappingWithoutRightsIsNoMemory) {
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, 1, /*forever=*/0), 0);
  ASSERT_EQ(cudasim_fail("cuMemUnmap", 1, 1, /*forever=*/1), 0);
  auto refused = allocator().Malloc(
      {9 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
  ASSERT_FALSE(refused.has_value());
  // It can still not be unmapped: that is an error again.
  refused = allocator().Malloc(
      {9 * kMiB, kDefaultStream, LifetimeClass::kPersistent, kOwner});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("cuMemUnmap"));
  cudasim_clear_faults();
  const Status status = allocator().CheckInvariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
  const Address block = Malloc(9 * kMiB);
  EXPECT_EQ(cudasim_range_is_accessible(block, 9 * kMiB), 1);
}

// Makes room, and from then on the driver maps nothing.
class BreakingReclaimer final : public Reclaimer {
 public:
  bool Reclaim(DeviceIndex, MemoryRequest& request) override {
    ++asked;
    free();
    cudasim_fail("cuMemMap", 1, 1, /*forever=*/1);
    return request.Take();
  }
  Bytes ReclaimCold(DeviceIndex, Bytes) override { return 0; }
  void OnPressure(DeviceIndex, Bytes, Bytes) override {}
  const char* LastRefusal(DeviceIndex) override { return ""; }
  std::function<void()> free;
  int asked = 0;
};

TEST_F(DeviceAllocatorTest, ADriverErrorAfterAnEvictionEvictsNoMore) {
  BreakingReclaimer reclaimer;
  allocator().SetReclaimer(&reclaimer);
  // Of another stream: its memory has to be mapped to be of use.
  const Address large = Malloc(40 * kMiB, NewStream());
  reclaimer.free = [&] { Free(large); };
  auto failed = allocator().Malloc(
      {30 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner});
  cudasim_clear_faults();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kDevice);
  EXPECT_THAT(failed.error().message, HasSubstr("cuMemMap"));
  EXPECT_EQ(reclaimer.asked, 1);
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
  allocator().SetReclaimer(nullptr);
}

TEST_F(DeviceAllocatorTest, ARelabelMovesTheChargeOfWhatTheRangeTouches) {
  const Address a = Malloc(1000), b = Malloc(1000);
  EXPECT_EQ(recorder_.owner.live.load(), 2048u);
  const Charge other{ScopeId{9}, Category::kBuffer};
  allocator().Relabel(a + 100, 10, other, /*keep_category=*/false);
  EXPECT_EQ(recorder_.owner.live.load(), 1024u);
  BlockView view;
  ASSERT_TRUE(allocator().FindLive(a, &view));
  EXPECT_EQ(view.charge, other);
  allocator().Relabel(b, 1, other, /*keep_category=*/true);
  ASSERT_TRUE(allocator().FindLive(b, &view));
  EXPECT_EQ(view.charge.category, Category::kParameter);
  EXPECT_EQ(view.charge.scope, ScopeId{9});
}

TEST_F(DeviceAllocatorTest, ASnapshotCoversWhatIsReserved) {
  const Address a = Malloc(1000);
  Malloc(3 * kMiB);
  const Address c = Malloc(2000);
  Free(a);
  Bytes total = 0, allocated = 0;
  for (const SegmentView& segment : allocator().Snapshot()) {
    Address at = segment.address;
    for (const BlockView& block : segment.blocks) {
      EXPECT_EQ(block.address, at);
      at += block.bytes;
      if (block.state == BlockState::kAllocated) allocated += block.bytes;
    }
    EXPECT_EQ(at, segment.address + segment.bytes);
    total += segment.bytes;
  }
  const DeviceStats s = allocator().Stats();
  EXPECT_EQ(total, static_cast<Bytes>(Of(s.reserved_bytes).current));
  EXPECT_EQ(allocated, static_cast<Bytes>(Of(s.allocated_bytes).current));
  (void)c;
}

TEST_F(DeviceAllocatorTest, TheBaseAllocationIsTheMappedRangeAroundABlock) {
  const Address a = Malloc(3 * kMiB), b = Malloc(3 * kMiB);
  Result<SegmentView> base = allocator().BaseAllocation(b + 5000);
  ASSERT_TRUE(base.has_value());
  EXPECT_EQ(base->address, a);
  EXPECT_EQ(base->bytes, 6 * kMiB);
  Free(b);
  EXPECT_EQ(allocator().BaseAllocation(b).error().code, ErrorCode::kNotFound);
}

TEST_F(DeviceAllocatorTest, WhatIsNotTheBaseOfALiveBlockIsNotFreed) {
  const Address a = Malloc(4096);
  for (Address wrong : {a + 512, Address{0}, Address{1} << 50}) {
    EXPECT_EQ(allocator().Free(wrong).error().code, ErrorCode::kNotFound);
  }
  Free(a);
  EXPECT_EQ(allocator().Free(a).error().code, ErrorCode::kNotFound);
}

TEST_F(DeviceAllocatorTest, ClassesAndStreamsNeverShareAHandle) {
  const StreamId side = NewStream();
  std::vector<Address> handles;
  for (StreamId stream : {kDefaultStream, side}) {
    for (int i = 0; i < kLifetimeClasses; ++i) {
      handles.push_back(Malloc(512, stream, static_cast<LifetimeClass>(i)) /
                        (2 * kMiB));
    }
  }
  std::sort(handles.begin(), handles.end());
  EXPECT_EQ(std::unique(handles.begin(), handles.end()), handles.end());
}

TEST_F(DeviceAllocatorTest, WithoutTieringClassesShareAndNothingIsEvictable) {
  DeviceAllocator::Options options;
  options.tiering = false;
  Open(64 * kMiB, options);
  const Address a = Malloc(512),
                b = Malloc(512, kDefaultStream, LifetimeClass::kGradient);
  EXPECT_EQ(b, a + 512);
  EXPECT_GE(a, allocator().table().evictable_end());
}

TEST_F(DeviceAllocatorTest, OversizeBlocksAreCountedEachTime) {
  static Bytes max_split_size = 8 * kMiB;
  Settings::Get().UseMaxSplitSize([] { return std::uint64_t{max_split_size}; });
  for (int i = 0; i < 3; ++i) {
    const Address address = Malloc(8 * kMiB);
    EXPECT_EQ(allocator().Stats().oversize_allocations.current, 1);
    Malloc(6 * kMiB);
    Free(address);
    EXPECT_EQ(allocator().Stats().oversize_allocations.current, 0);
  }
  EXPECT_EQ(allocator().Stats().oversize_allocations.allocated, 3);
  // A change in between leaves nothing behind.
  const Address address = Malloc(8 * kMiB);
  max_split_size = 16 * kMiB;
  Free(address);
  EXPECT_EQ(allocator().Stats().oversize_allocations.current, 0);
  const Address again = Malloc(8 * kMiB);  // the block is none any more
  EXPECT_EQ(again, address);
  ASSERT_TRUE(allocator().RecordStream(again, NewStream()).has_value());
  Free(again);  // the whole way
  EXPECT_EQ(allocator().Stats().oversize_allocations.current, 0);
  EXPECT_EQ(allocator().Stats().oversize_allocations.freed, 4);
  Settings::Get().UseMaxSplitSize(nullptr);
}

TEST_F(DeviceAllocatorTest, GarbageCollectionKeepsReservedMemoryBelow) {
  static double threshold = 0;
  Settings::Get().UseCollectionThreshold([] { return threshold; });
  allocator().SetFraction(0.99);
  // Cached memory of busy streams, which nobody waits for as long as memory
  // can grow.
  const auto leave_cached = [&] {
    for (int i = 0; i < 2; ++i) {
      const StreamId stream = NewStream();
      const Address address =
          Malloc(20 * kMiB, stream, LifetimeClass::kTransient);
      // A look at a stream may let it do a step.
      for (int step = 0; step < 100; ++step) Use(address, kMiB, stream);
      Free(address);
    }
  };
  leave_cached();
  Free(Malloc(10 * kMiB));
  EXPECT_EQ(cudasim_used(0), 50 * kMiB);
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  threshold = 0.25;
  leave_cached();
  Free(Malloc(10 * kMiB));
  EXPECT_LE(cudasim_used(0), 16 * kMiB);
  EXPECT_EQ(allocator().Stats().num_alloc_retries, 0);
  Settings::Get().UseCollectionThreshold(nullptr);
}

TEST_F(DeviceAllocatorTest, PagesThatAreMadeAndFreedAreNotedOnceAsked) {
  const Bytes page =
      allocator_->table().region(true, PoolKind::kLarge).handle_bytes;
  allocator_->TakePageChanges();
  // Three pages, of which two blocks share the second one.
  const Address first = Malloc(page + page / 2);
  const Address second = Malloc(page + page / 2);
  ASSERT_EQ(second, first + page + page / 2);
  const auto made = allocator_->TakePageChanges();
  ASSERT_EQ(made.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(made[i].page, first + i * page);
    EXPECT_TRUE(made[i].made);
  }
  Free(first);
  const auto freed = allocator_->TakePageChanges();
  ASSERT_EQ(freed.size(), 1u) << "no bin keeps it";
  EXPECT_EQ(freed[0].page, first);
  EXPECT_FALSE(freed[0].made);
  EXPECT_FALSE(allocator_->SomePageChanges());
  Free(second);
  EXPECT_TRUE(allocator_->SomePageChanges());
}

}  // namespace
}  // namespace stratalloc
