// SPDX-License-Identifier: Apache-2.0
// A device without virtual memory management: everything comes from cudaMalloc,
// in native's sizes and by native's rules.
#include <gtest/gtest.h>

#include <vector>

#include "allocator/device_allocator_fixture_test.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

Bytes max_split_size = ~Bytes{0};
double threshold = 0;

class UnmanagedDeviceTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    max_split_size = ~Bytes{0};
    threshold = 0;
    Settings::Get().UseMaxSplitSize(
        [] { return std::uint64_t{max_split_size}; });
    Settings::Get().UseCollectionThreshold([] { return threshold; });
    ASSERT_EQ(cudasim_set_virtual_memory(-1, 0), 0);
    Open(64 * kMiB);
  }
  void TearDown() override {
    DeviceAllocatorTest::TearDown();
    EXPECT_EQ(cudasim_set_virtual_memory(-1, 1), 0);
    Settings::Get().UseMaxSplitSize(nullptr);
    Settings::Get().UseCollectionThreshold(nullptr);
  }
  static Bytes Used() { return cudasim_used(0); }
};

TEST_F(UnmanagedDeviceTest, MemoryComesInNativesSizes) {
  const Address small = Malloc(1000);
  EXPECT_EQ(Used(), 2 * kMiB);
  const Address medium = Malloc(3 * kMiB);
  EXPECT_EQ(Used(), 22 * kMiB);
  const Address large = Malloc(17 * kMiB + 1);
  EXPECT_EQ(Used(), 40 * kMiB);
  EXPECT_EQ(Of(allocator().Stats().segment).current, 3);
  EXPECT_EQ(Of(allocator().Stats().reserved_bytes).current, 40 << 20);
  for (const SegmentView& view : allocator().Snapshot()) {
    EXPECT_TRUE(view.unmanaged);
  }
  // The rest of a segment serves others.
  const Address second = Malloc(5 * kMiB);
  EXPECT_EQ(Used(), 40 * kMiB);
  for (const Address address : {small, medium, second, large}) Free(address);
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(Used(), 0u);
  EXPECT_EQ(allocator().Stats().num_device_alloc, 3);
  EXPECT_EQ(allocator().Stats().num_device_free, 3);
}

TEST_F(UnmanagedDeviceTest, HistoryNamesThemSegmentsNotMappings) {
  History::Options options;
  options.enabled = true;
  options.max_entries = 10;
  allocator().ConfigureHistory(options);
  Free(Malloc(3 * kMiB));
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  const std::vector<TraceEvent> events = allocator().Traces();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events.front().action, TraceAction::kSegmentAlloc);
  EXPECT_EQ(events.front().bytes, 20 * kMiB);
  EXPECT_EQ(events.back().action, TraceAction::kSegmentFree);
  EXPECT_EQ(events.back().bytes, 20 * kMiB);
}

TEST_F(UnmanagedDeviceTest, NothingCanBeEvicted) {
  EXPECT_FALSE(allocator().device().has_virtual_memory());
  EXPECT_FALSE(allocator().MayLeave(Malloc(3 * kMiB)));
  EXPECT_EQ(allocator().Stays().of(StayReason::kTieringOff), 3 * kMiB);
}

TEST_F(UnmanagedDeviceTest, CachedSegmentsGoBeforeOutOfMemory) {
  Free(Malloc(30 * kMiB));
  Free(Malloc(20 * kMiB, NewStream()));
  EXPECT_EQ(Used(), 50 * kMiB);
  const Address address = Malloc(36 * kMiB);
  EXPECT_LE(Used(), 56 * kMiB);
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
  Free(address);
  auto refused = allocator().Malloc(
      {80 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(Used(), 0u);  // everything was given back for it
}

TEST_F(UnmanagedDeviceTest, AnErrorOtherThanMemoryIsToldAsItIs) {
  Free(Malloc(30 * kMiB));
  ASSERT_EQ(cudasim_fail("cudaMalloc", 1, cudaErrorInvalidValue, /*forever=*/0),
            0);
  auto failed = allocator().Malloc(
      {31 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner});
  cudasim_clear_faults();
  ASSERT_FALSE(failed.has_value()) << "asked again";
  EXPECT_EQ(failed.error().code, ErrorCode::kDevice);
  EXPECT_EQ(failed.error().message.rfind("CUDA error: cudaMalloc failed", 0),
            0u)
      << failed.error().message;
  EXPECT_EQ(Used(), 30 * kMiB) << "nothing is given back for it";
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
  EXPECT_EQ(allocator().Stats().num_alloc_retries, 0);
  EXPECT_TRUE(allocator().CheckInvariants().has_value());
}

TEST_F(UnmanagedDeviceTest, ASegmentWithALiveBlockStays) {
  const Address kept = Malloc(2 * kMiB);
  Free(Malloc(15 * kMiB));
  Free(Malloc(4 * kMiB));
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(Used(), 20 * kMiB);
  const DeviceStats stats = allocator().Stats();
  EXPECT_EQ(stats.inactive_split.stats[0].current, 1);
  EXPECT_EQ(stats.inactive_split_bytes.stats[2].current, 18 << 20);
  Free(kept);
  EXPECT_EQ(Of(allocator().Stats().inactive_split).current, 0);
}

TEST_F(UnmanagedDeviceTest, TheLimitHolds) {
  allocator().SetFraction(0.5);
  Malloc(20 * kMiB);
  auto refused = allocator().Malloc(
      {14 * kMiB, kDefaultStream, LifetimeClass::kTransient, kOwner});
  EXPECT_FALSE(refused.has_value());
  EXPECT_EQ(Used(), 20 * kMiB);
}

TEST_F(UnmanagedDeviceTest, OversizeBlocksAreNotSplit) {
  max_split_size = 24 * kMiB;
  Free(Malloc(40 * kMiB));
  const Address below = Malloc(20 * kMiB);
  EXPECT_EQ(Used(), 60 * kMiB);  // not cut from the 40
  // Taken whole by what is large enough itself.
  const Address whole = Malloc(26 * kMiB);
  EXPECT_EQ(Used(), 60 * kMiB);
  DeviceStats stats = allocator().Stats();
  EXPECT_EQ(Of(stats.allocated_bytes).current, 60 << 20);
  EXPECT_EQ(stats.oversize_allocations.current, 1);
  EXPECT_EQ(stats.oversize_segments.current, 1);
  Free(whole);
  EXPECT_EQ(allocator().Stats().oversize_allocations.current, 0);
  // A change in between leaves nothing behind.
  max_split_size = 100 * kMiB;
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(allocator().Stats().oversize_segments.current, 0);
  // By nothing that would waste 20 MiB or more; the cached one makes room.
  max_split_size = 12 * kMiB;
  Free(below);
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  Free(Malloc(40 * kMiB));
  Malloc(20 * kMiB);
  EXPECT_EQ(Used(), 60 * kMiB);
}

TEST_F(UnmanagedDeviceTest, OldSegmentsGoFirst) {
  threshold = 0.5;
  allocator().SetFraction(0.99);
  const Address old = Malloc(14 * kMiB);
  Free(old);
  Free(Malloc(16 * kMiB));
  Free(Malloc(18 * kMiB));
  EXPECT_EQ(Used(), 48 * kMiB);
  Malloc(10 * kMiB, NewStream());
  // More than half was cached: the two that nobody asked for the longest.
  EXPECT_EQ(Used(), 28 * kMiB);
  EXPECT_EQ(allocator().Stats().num_alloc_retries, 0);
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
}

// The fraction is set after the blocks were there, and nothing grew since.
TEST_F(UnmanagedDeviceTest, SearchesCountFromTheMomentThatAgesDo) {
  threshold = 0.5;
  const Address cold = Malloc(16 * kMiB);
  const Address hot = Malloc(18 * kMiB);
  Free(cold);
  Free(hot);
  allocator().SetFraction(0.99);
  for (int i = 0; i < 10; ++i) Free(Malloc(18 * kMiB));
  Malloc(10 * kMiB, NewStream());
  EXPECT_EQ(Used(), 28 * kMiB) << "the one that nobody asked for is gone";
}

TEST_F(UnmanagedDeviceTest, OldSegmentsWithALiveBlockStay) {
  threshold = 0.3;
  allocator().SetFraction(0.99);
  const Address kept = Malloc(3 * kMiB);  // of 20 MiB
  Free(Malloc(14 * kMiB));                // the rest of it is free, too
  EXPECT_EQ(Used(), 20 * kMiB);
  Malloc(10 * kMiB, NewStream());
  EXPECT_EQ(Used(), 30 * kMiB);
  Free(kept);
}

TEST_F(UnmanagedDeviceTest, ABlockWaitsForTheStreamsRecordedOnIt) {
  const StreamId other = NewStream();
  const Address address = Malloc(12 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(address, other).has_value());
  Use(address, 12 * kMiB, other);
  Free(address);
  EXPECT_TRUE(allocator().EmptyCache().has_value());  // waits for it
  EXPECT_EQ(Used(), 0u);
}

TEST_F(UnmanagedDeviceTest, ItIsFoundByAddress) {
  const Address address = Malloc(3 * kMiB);
  EXPECT_FALSE(allocator().Contains(address));
  EXPECT_TRUE(allocator().ContainsUnmanaged(address + 100));
  EXPECT_TRUE(allocator().Owns(address));
  EXPECT_FALSE(allocator().ContainsUnmanaged(address - 1));
}

// With virtual memory management, where the program asked for unmanaged
// segments.
bool unmanaged_segments = false;

class UnmanagedByChoiceTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    unmanaged_segments = true;
    Settings::Get().UseUnmanagedSegments([] { return unmanaged_segments; });
    Open(64 * kMiB, {.tiering = true});
  }
  void TearDown() override {
    DeviceAllocatorTest::TearDown();
    Settings::Get().UseUnmanagedSegments(nullptr);
  }
  Address MallocTransient(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  }
  // As the wire format has it: 'c' for cudaMalloc, 'e' for handles.
  char HandleKind(Address address) {
    const Result<SharedBlock> shared = allocator().Share(address);
    EXPECT_TRUE(shared.has_value()) << shared.error().message;
    return shared ? shared->handle[1] : '?';
  }
};

TEST_F(UnmanagedByChoiceTest, WhatNeverLeavesComesFromCudaMalloc) {
  const Address transient = MallocTransient(3 * kMiB);
  EXPECT_EQ(cudasim_used(0), 20 * kMiB);
  EXPECT_EQ(HandleKind(transient), 'c') << "legacy IPC";
  const Address weight = Malloc(3 * kMiB);
  EXPECT_EQ(HandleKind(weight), 'e') << "it may leave, handle by handle";
  EXPECT_EQ(cudasim_used(0), 24 * kMiB);
  Free(transient);
  Free(weight);
  EXPECT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(cudasim_used(0), 0u);
}

TEST_F(UnmanagedByChoiceTest, WithoutTieringEverythingDoes) {
  Open(64 * kMiB, {.tiering = false});
  const Address weight = Malloc(3 * kMiB);
  EXPECT_EQ(HandleKind(weight), 'c');
  Free(weight);
}

TEST_F(UnmanagedByChoiceTest, ItMayBeChosenAnyTime) {
  unmanaged_segments = false;
  const Address before = MallocTransient(3 * kMiB);
  EXPECT_EQ(HandleKind(before), 'e');
  unmanaged_segments = true;
  const Address after = MallocTransient(9 * kMiB);
  EXPECT_EQ(HandleKind(after), 'c');
  unmanaged_segments = false;
  const Address again = MallocTransient(30 * kMiB);
  EXPECT_EQ(HandleKind(again), 'e');
  for (const Address address : {before, after, again}) Free(address);
}

TEST_F(UnmanagedByChoiceTest, FreeHandlesGoBackForIt) {
  const Address weight = Malloc(60 * kMiB);
  Free(weight);
  const Address transient = MallocTransient(40 * kMiB);
  EXPECT_EQ(HandleKind(transient), 'c');
  Free(transient);
  const Address more = Malloc(60 * kMiB);
  EXPECT_EQ(HandleKind(more), 'e');
  Free(more);
}

}  // namespace
}  // namespace stratalloc
