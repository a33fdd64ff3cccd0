// SPDX-License-Identifier: Apache-2.0
// What the rungs ask of a real allocator on the simulated device: limits, what
// is counted, and who is told.
#include "allocator/ladder/ladder_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/blocks/operator_thread.h"
#include "allocator/moving_test.h"
#include "allocator/private_pool_fixture_test.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ScriptedReclaimer final : public Reclaimer {
 public:
  bool Reclaim(DeviceIndex, MemoryRequest& request) override {
    ++asked;
    return reclaim(request);
  }
  Bytes ReclaimCold(DeviceIndex, Bytes bytes) override {
    wanted_cold.push_back(bytes);
    if (cold) std::exchange(cold, nullptr)();
    return 0;
  }
  bool IsCrowded() const override { return crowded; }
  bool UnderPressure(DeviceIndex) const override { return pressure; }
  double PressureThreshold() const override { return 0.5; }
  void OnPressure(DeviceIndex, Bytes allocated, Bytes) override {
    told.push_back(allocated);
  }
  const char* LastRefusal(DeviceIndex) override { return ""; }

  std::function<bool(MemoryRequest&)> reclaim = [](MemoryRequest&) {
    return false;
  };
  std::function<void()> cold;
  bool crowded = false, pressure = false;
  int asked = 0;
  std::vector<Bytes> wanted_cold, told;
};

class LadderDeviceTest : public PrivatePoolTest {
 protected:
  void SetUp() override {
    PrivatePoolTest::SetUp();
    allocator().SetReclaimer(&reclaimer_);
  }
  void WithoutReclaimer() { allocator().SetReclaimer(nullptr); }
  Result<AllocatedBlock> Try(
      Bytes bytes, LifetimeClass lifetime = LifetimeClass::kPersistent) {
    return allocator().Malloc({bytes, kDefaultStream, lifetime, kOwner});
  }
  // A bare pointer takes the whole way, also to what is cached.
  Address MallocRaw(Bytes bytes) {
    auto block =
        allocator().Malloc({bytes, kDefaultStream, LifetimeClass::kTransient,
                            kOwner, /*raw=*/true});
    EXPECT_TRUE(block.has_value());
    if (!block) return 0;
    live_.push_back(block->address);
    return block->address;
  }
  // 20 MiB freed beside 40 that are kept, which only a wait proves free.
  void LeaveWhatMustBeWaitedFor() {
    const StreamId side = NewStream();
    Malloc(40 * kMiB);
    const Address waited = Malloc(20 * kMiB);
    ASSERT_TRUE(allocator().RecordStream(waited, side).has_value());
    Use(waited, 20 * kMiB, side);
    ASSERT_EQ(cudasim_fail("cudaEventRecord", 1, 2, /*forever=*/1), 0);
    Free(waited);
    cudasim_clear_faults();
  }
  // Routes to a pool whose allocator has memory at the nth time it is asked.
  void RouteToWhoHasMemoryAt(int nth) {
    lender_.empty = true;
    const auto source = lender_.Source();
    allocator().CreateOrUsePool(
        kUser, std::make_shared<const MemorySource>(
                   MemorySource{[this, nth, source, asked = 0](
                                    Bytes bytes, StreamId stream) mutable {
                                  lender_.empty = ++asked < nth;
                                  return source->allocate(bytes, stream);
                                },
                                source->free}));
    Route(kUser);
  }
  void EndPool() {
    EndRoute(kUser);
    Release(kUser);
    Release(kUser);
  }
  std::int64_t Retries() { return allocator().Stats().num_alloc_retries; }

  ScriptedReclaimer reclaimer_;
  Lender lender_;
};

TEST_F(LadderDeviceTest, ASearchThatServesAfterAWaitIsARetry) {
  LeaveWhatMustBeWaitedFor();
  Malloc(20 * kMiB);
  EXPECT_EQ(Retries(), 1);
  EXPECT_EQ(reclaimer_.asked, 0);
}

TEST_F(LadderDeviceTest, WithoutAReclaimerWhoeverWaitedHasRetried) {
  WithoutReclaimer();
  RouteToWhoHasMemoryAt(3);  // bought, bought after the release, and again
  Free(Malloc(20 * kMiB));
  EXPECT_EQ(Retries(), 1);
  EndPool();
  EXPECT_TRUE(allocator().EmptyCache().has_value());
}

TEST_F(LadderDeviceTest, WhoMayStillEvictHasNotRetriedBefore) {
  RouteToWhoHasMemoryAt(3);
  Free(Malloc(20 * kMiB));
  EXPECT_EQ(Retries(), 0);
  EXPECT_EQ(reclaimer_.asked, 0);
  EndPool();
  EXPECT_TRUE(allocator().EmptyCache().has_value());
}

TEST_F(LadderDeviceTest, ARefusalIsOneRetryAndOneRefusal) {
  Malloc(40 * kMiB);
  EXPECT_FALSE(Try(30 * kMiB).has_value());
  EXPECT_EQ(reclaimer_.asked, 1);
  EXPECT_EQ(Retries(), 1);
  WithoutReclaimer();
  EXPECT_FALSE(Try(30 * kMiB).has_value());
  EXPECT_EQ(Retries(), 2);
  EXPECT_EQ(allocator().Stats().num_ooms, 2);
}

TEST_F(LadderDeviceTest, WhatNoCardHasIsRefusedWithoutAsking) {
  const auto absurd = Try(Bytes{1} << 61);
  ASSERT_FALSE(absurd.has_value());
  EXPECT_EQ(absurd.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(Retries(), 0);
  EXPECT_EQ(allocator().Stats().num_ooms, 0);
}

TEST_F(LadderDeviceTest, TheReclaimerIsToldWhatIsMissingNotWhatWasAskedFor) {
  Malloc(40 * kMiB);
  reclaimer_.reclaim = [](MemoryRequest& request) {
    EXPECT_FALSE(request.Take());
    EXPECT_EQ(request.Missing(), 6 * kMiB);
    return false;
  };
  EXPECT_FALSE(Try(30 * kMiB).has_value());
  EXPECT_EQ(reclaimer_.asked, 1);
}

TEST_F(LadderDeviceTest, ANestedMallocAsksNoReclaimerAndWaitsForNoEvent) {
  LeaveWhatMustBeWaitedFor();
  const auto before = allocator().Stats().num_sync_all_streams;
  OperatorThread::ThisThread().in_ladder = true;
  EXPECT_FALSE(Try(20 * kMiB).has_value());
  OperatorThread::ThisThread().in_ladder = false;
  EXPECT_EQ(reclaimer_.asked, 0);
  EXPECT_EQ(allocator().Stats().num_sync_all_streams, before);
}

TEST_F(LadderDeviceTest, AMallocWhileItsStreamCapturesAsksNoReclaimer) {
  Malloc(40 * kMiB);
  const StreamId stream = NewStream();
  Route(kGraph);
  Capture(stream, true);
  EXPECT_FALSE(
      allocator()
          .Malloc({30 * kMiB, stream, LifetimeClass::kTransient, kOwner})
          .has_value());
  EXPECT_EQ(reclaimer_.asked, 0);
  Capture(stream, false);
  EXPECT_FALSE(
      allocator()
          .Malloc({30 * kMiB, stream, LifetimeClass::kTransient, kOwner})
          .has_value());
  EXPECT_EQ(reclaimer_.asked, 1) << "it is over";
  EndRoute(kGraph);
  Release(kGraph);
}

// Those who wait, wait for the end of a capture, which may wait for whoever
// comes now.
TEST_F(LadderDeviceTest, NobodyQueuesWhileAStreamMayCapture) {
  const StreamId stream = NewStream();
  reclaimer_.crowded = true;
  Malloc(3 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 1) << "behind those who wait";
  Capture(stream, true);
  // By another thread, so that it is not this one's own.
  std::thread([&] { allocator().NoteCapture(stream); }).join();
  Malloc(3 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 1);
  Capture(stream, false);
  EXPECT_FALSE(allocator().LookAtCaptures().under_way);
  Malloc(3 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 2);
}

// One load instead of a call of the driver for each of torch's record_stream.
TEST_F(LadderDeviceTest, RecordingAStreamAsksNobodyWhileNobodyRoutes) {
  const StreamId stream = NewStream();
  const Address address = Malloc(3 * kMiB);
  const auto asked = [] { return cudasim_calls("cudaStreamIsCapturing"); };
  const long before = asked();
  ASSERT_TRUE(allocator().RecordStream(address, stream).has_value());
  EXPECT_EQ(asked(), before);
  Route(kGraph);
  ASSERT_TRUE(allocator().RecordStream(address, stream).has_value());
  EXPECT_EQ(asked(), before + 1);
  EndRoute(kGraph);
  Release(kGraph);
}

TEST_F(LadderDeviceTest, WhatACaptureUsedIsNotMovedWithinItsPool) {
  WithoutReclaimer();
  const StreamId stream = NewStream();
  Route(kUser);
  Capture(stream, true);
  // The small block between keeps the two places apart.
  const Address one = Malloc(30 * kMiB, stream);
  Malloc(2 * kMiB, stream);
  const Address two = Malloc(25 * kMiB, stream);
  Capture(stream, false);
  Free(one);
  Free(two);
  const MallocRequest more{50 * kMiB, stream, LifetimeClass::kTransient,
                           kOwner};
  EXPECT_FALSE(allocator().Malloc(more).has_value());
  EndRoute(kUser);
  Release(kUser);
}

TEST_F(LadderDeviceTest, TheReclaimerHearsOfWhatIsCachedAndOfGrowth) {
  reclaimer_.pressure = true;
  const Address grown =
      Malloc(40 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_THAT(reclaimer_.told, testing::ElementsAre(40 * kMiB));
  Free(grown);
  EXPECT_EQ(MallocRaw(40 * kMiB), grown);
  EXPECT_THAT(reclaimer_.told, testing::ElementsAre(40 * kMiB, 40 * kMiB));
}

// What was on its way back from the host has arrived: a malloc that passes the
// fast path by looks, too.
TEST_F(LadderDeviceTest, TheFirstSearchSettlesWhatHasArrived) {
  const Address a = Malloc(4 * kMiB);
  const HandleRef handle = HandleAt(allocator(), a);
  EvictToHost(allocator(), handle);
  auto memory = allocator().TakePhysical(handle.bytes());
  ASSERT_TRUE(memory.has_value());
  const EventId event = allocator().TakeEvent();
  ASSERT_TRUE(allocator().device().RecordEvent(event, kDefaultStream));
  Restore(allocator(), handle, *memory, event);
  cudaDeviceSynchronize();
  EXPECT_EQ(handle.entry().state.load(), HandleState::kCopyingIn);
  MallocRaw(512);
  EXPECT_EQ(handle.entry().state.load(), HandleState::kResident);
}

TEST_F(LadderDeviceTest, UnderPressureWhatIsColdGoesBeforeTheLimitIsReached) {
  Open(100 * kMiB);
  allocator().SetReclaimer(&reclaimer_);
  reclaimer_.pressure = true;
  const Address cold = Malloc(20 * kMiB);
  Malloc(70 * kMiB);
  EXPECT_TRUE(reclaimer_.wanted_cold.empty());
  // The emergency threshold is at 95 of 100 MiB.
  reclaimer_.cold = [&] { Free(cold); };
  Malloc(10 * kMiB);
  EXPECT_EQ(reclaimer_.wanted_cold.size(), 1u);
  EXPECT_LE(Reserved(), 95 * kMiB);
  Malloc(10 * kMiB);  // out of what was cold
  Malloc(8 * kMiB);
  EXPECT_EQ(reclaimer_.wanted_cold.size(), 2u) << "nothing was: to the limit";
  EXPECT_EQ(allocator().Stats().num_sync_all_streams, 0) << "and at once";
  EXPECT_EQ(Reserved(), 98 * kMiB);
  EXPECT_EQ(reclaimer_.asked, 0);
}

TEST_F(LadderDeviceTest, WithGarbageCollectionGrowthStopsAtTheThreshold) {
  static double threshold = 0.5;
  Settings::Get().UseCollectionThreshold([] { return threshold; });
  allocator().SetFraction(0.99);
  const StreamId busy = NewStream();
  const Address cached = Malloc(20 * kMiB, busy);
  for (int step = 0; step < 100; ++step) Use(cached, 20 * kMiB, busy);
  Free(cached);
  Malloc(20 * kMiB);
  EXPECT_LE(cudasim_used(0), 32 * kMiB) << "what was released went back";
  Settings::Get().UseCollectionThreshold(nullptr);
}

TEST_F(LadderDeviceTest, TheReclaimersRequestGrowsByUnmanagedSegmentsToo) {
  Settings::Get().UseUnmanagedSegments([] { return true; });
  const Address evicted = Malloc(50 * kMiB);
  reclaimer_.reclaim = [&](MemoryRequest& request) {
    EXPECT_FALSE(request.Take());
    EXPECT_EQ(request.Missing(), 20 * kMiB) << "native's segment for it";
    Free(evicted);
    return request.Take();
  };
  EXPECT_NE(Malloc(4 * kMiB, kDefaultStream, LifetimeClass::kTransient), 0u);
  EXPECT_EQ(reclaimer_.asked, 1);
  Settings::Get().UseUnmanagedSegments(nullptr);
}

TEST_F(LadderDeviceTest, ASourceThatFailsEndsItWithItsOwnError) {
  allocator().CreateOrUsePool(
      kUser, std::make_shared<const MemorySource>(MemorySource{
                 [](Bytes, StreamId) -> Result<Address> {
                   return Fail(ErrorCode::kDevice, "the source is broken");
                 },
                 [](Address) {}}));
  Route(kUser);
  const auto failed = Try(20 * kMiB);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kDevice);
  EXPECT_EQ(failed.error().message, "CUDA driver error: the source is broken");
  EXPECT_EQ(Retries(), 0);
  EndPool();
}

TEST_F(LadderDeviceTest, WithoutVirtualMemoryTheRuntimesErrorIsTold) {
  allocator_.reset();
  ASSERT_EQ(cudasim_set_virtual_memory(-1, 0), 0);
  Open(64 * kMiB);
  ASSERT_EQ(cudasim_fail("cudaMalloc", 1, 1, /*forever=*/0), 0);
  const auto failed = Try(20 * kMiB);
  cudasim_clear_faults();
  ASSERT_FALSE(failed.has_value());
  EXPECT_THAT(failed.error().message, StartsWith("CUDA error: "));
  EXPECT_THAT(failed.error().message, HasSubstr("cudaMalloc"));
  EXPECT_EQ(cudasim_set_virtual_memory(-1, 1), 0);
}

}  // namespace
}  // namespace stratalloc
