// SPDX-License-Identifier: Apache-2.0
// Every reason for which bytes are on the device, and that they add up.
#include "allocator/explain/staying.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/blocks/operator_thread.h"
#include "allocator/private_pool_fixture_test.h"
#include "allocator/state/workspaces.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

std::vector<Address> named;  // the library's workspaces
bool telling = true;

int List(void (*each)(void* context, void* address), void* context) {
  for (Address address : named) {
    each(context, reinterpret_cast<void*>(address));
  }
  return telling ? 1 : 0;
}

class StayingTest : public PrivatePoolTest {
 protected:
  void SetUp() override {
    named.clear();
    telling = true;
    PrivatePoolTest::SetUp();
  }
  void TearDown() override {
    LibraryWorkspaces::Use(nullptr);
    PrivatePoolTest::TearDown();
  }
  Address Transient(Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  }
  Staying Stays() {
    const Staying staying = allocator().Stays();
    EXPECT_EQ(
        staying.total(),
        static_cast<Bytes>(Of(allocator().Stats().allocated_bytes).current));
    return staying;
  }
};

TEST_F(StayingTest, WhatARuleKeepsIsNamed) {
  Transient(kMiB);
  const Address kept =
      Malloc(3 * kMiB, kDefaultStream, LifetimeClass::kStaying);
  EXPECT_EQ(Stays().of(StayReason::kActivation), kMiB);
  EXPECT_EQ(Stays().of(StayReason::kRule), 3 * kMiB);
  EXPECT_THAT(Stays().ToText(), HasSubstr("3.00 MiB kept by a rule"));
  const auto held = [&] {
    DeviceReports::Placed placed;
    EXPECT_TRUE(allocator().FindPlaced(kept + 5, &placed));
    EXPECT_EQ(placed.lifetime, LifetimeClass::kStaying);
    return placed.held;
  };
  EXPECT_FALSE(held());
  // Its pins are known, though it stays without: it might get another place.
  const BlockPin pin = allocator().PinBlock(kept, PinReason::kProgram);
  EXPECT_NE(pin.serial, 0u);
  EXPECT_TRUE(held());
  EXPECT_EQ(Stays().of(StayReason::kRule), 3 * kMiB);
  EXPECT_TRUE(allocator().UnpinBlock(pin, /*unobserved=*/true));
  EXPECT_EQ(allocator().PinBlock(kept, PinReason::kPointer).serial, 0u)
      << "data_ptr() is asked for again";
  EXPECT_FALSE(held());
  Free(kept);
  DeviceReports::Placed gone;
  EXPECT_FALSE(allocator().FindPlaced(kept, &gone));
}

TEST_F(StayingTest, ARuleForNoTierAtAllIsAReason) {
  const Address one = Malloc(kMiB), other = Malloc(kMiB);
  allocator().SetRule(one, {.host = false});
  EXPECT_EQ(Stays().of(StayReason::kEvictable), 2 * kMiB);
  EXPECT_EQ(allocator().SetRule(other, {.disk = false}), TierRule{});
  EXPECT_EQ(Stays().of(StayReason::kRule), 2 * kMiB) << "they share a handle";
  EXPECT_TRUE(allocator().Candidates({}).empty());
  Free(one);
  EXPECT_EQ(Stays().of(StayReason::kEvictable), kMiB);
  EXPECT_FALSE(allocator().SetRule(one, {.host = false}).has_value());
  EXPECT_FALSE(
      allocator().SetRule(Transient(kMiB), {.host = false}).has_value());
}

TEST_F(StayingTest, NothingThenActivationsAndWhatMayLeave) {
  EXPECT_EQ(Stays().total(), 0u);
  EXPECT_EQ(Stays().ToText(), "nothing");
  Transient(3 * kMiB);
  Malloc(5 * kMiB);
  EXPECT_EQ(Stays().of(StayReason::kActivation), 3 * kMiB);
  EXPECT_EQ(Stays().of(StayReason::kEvictable), 5 * kMiB);
  // What may leave comes last, however much it is.
  EXPECT_EQ(Stays().ToText(), "3.00 MiB activations, 5.00 MiB evictable");
}

TEST_F(StayingTest, RawMemoryIsMarkedUntilItIsFreed) {
  auto raw = allocator().Malloc({.size = 2 * kMiB, .raw = true});
  ASSERT_TRUE(raw.has_value());
  EXPECT_EQ(Stays().of(StayReason::kRaw), 2 * kMiB);
  ASSERT_TRUE(allocator().Free(raw->address).has_value());
  EXPECT_EQ(Transient(2 * kMiB), raw->address) << "the same memory again";
  EXPECT_EQ(Stays().of(StayReason::kRaw), 0u);
  EXPECT_EQ(Stays().of(StayReason::kActivation), 2 * kMiB);
}

TEST_F(StayingTest, AWorkspaceKeepsWhatSharesItsHandle) {
  LibraryWorkspaces::Use(&List);
  const Address workspace = Malloc(kMiB + 512);
  Malloc(4 * kMiB);
  const Address temporary = Transient(kMiB);
  named = {workspace, temporary, Address{512}};
  // The second block begins in the workspace's last handle.
  EXPECT_EQ(Stays().of(StayReason::kWorkspace), 2 * kMiB + kMiB);
  EXPECT_EQ(Stays().of(StayReason::kEvictable), 3 * kMiB + 512);
  EXPECT_EQ(Stays().of(StayReason::kActivation), 0u);
}

TEST_F(StayingTest, AnOperatorsOperandsAreItsUntilItReturns) {
  const Address operand = Malloc(2 * kMiB);
  Malloc(2 * kMiB);
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  thread.Pin(allocator().table().RefOf(operand).use());
  EXPECT_EQ(Stays().of(StayReason::kOperator), 2 * kMiB);
  EXPECT_EQ(Stays().of(StayReason::kEvictable), 2 * kMiB);
  thread.Leave();
  EXPECT_EQ(Stays().of(StayReason::kOperator), 0u);
}

TEST_F(StayingTest, AGraphsPoolAndWhatItReads) {
  const Address operand = Malloc(2 * kMiB);
  Malloc(4 * kMiB);
  HandleUse* const use = &allocator().table().RefOf(operand).use();
  const StreamId stream = NewStream();
  Route(kGraph);
  Capture(stream, true);
  Malloc(kMiB * 3, stream);
  EXPECT_TRUE(allocator().KeepForGraph(stream, {&use, 1}));
  EXPECT_THAT(allocator().WhyNoMore(""), HasSubstr("is captured"));
  Capture(stream, false);
  EndRoute(kGraph);
  EXPECT_EQ(Stays().of(StayReason::kPrivatePool), 3 * kMiB);
  EXPECT_EQ(Stays().of(StayReason::kGraph), 2 * kMiB);
  EXPECT_EQ(Stays().of(StayReason::kEvictable), 4 * kMiB);
  Release(kGraph);  // the route's use
  EXPECT_EQ(Stays().of(StayReason::kEvictable), 6 * kMiB);
}

TEST_F(StayingTest, ASharedBlockSaysSo) {
  const Address shared = Malloc(2 * kMiB);
  ASSERT_TRUE(allocator().Share(shared).has_value());
  EXPECT_EQ(Stays().of(StayReason::kShared), 2 * kMiB);
}

TEST_F(StayingTest, ARefusalNamesTheTierAndTheRest) {
  Transient(3 * kMiB);
  Malloc(4 * kMiB);
  EXPECT_EQ(
      allocator().WhyNoMore("the host budget is spent"),
      "the host budget is spent; on the device: 3.00 MiB activations, "
      "4.00 MiB evictable, 1024.00 KiB free beside them in their handles, "
      "in 8.00 MiB of reserved memory");
  EXPECT_EQ(
      allocator().WhyNoMore(""),
      "on the device: 3.00 MiB activations, 4.00 MiB evictable, 1024.00 KiB "
      "free beside them in their handles, in 8.00 MiB of reserved "
      "memory");
}

TEST_F(StayingTest, WhatWaitsForItsStreamsIsAccountedFor) {
  const StreamId stream = NewStream();
  const Address used = Malloc(3 * kMiB);
  ASSERT_TRUE(allocator().RecordStream(used, stream).has_value());
  cudasim_hold_streams(1);
  cudasim_note_access(reinterpret_cast<void*>(Raw(stream)), "kernel", nullptr,
                      0);
  Free(used);
  EXPECT_EQ(
      allocator().WhyNoMore(""),
      "on the device: 1024.00 KiB free beside them in their handles, 3.00 "
      "MiB freed while other streams use it, in 4.00 MiB of reserved "
      "memory");
  cudasim_hold_streams(0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// One small block of a graph keeps a handle; what it freed its pool keeps.
TEST_F(StayingTest, ARefusalAccountsForAllThatIsReserved) {
  const StreamId stream = NewStream();
  Route(kGraph);
  Capture(stream, true);
  const Address freed = Malloc(12 * kMiB, stream);
  Malloc(512, stream);
  Free(freed);
  Capture(stream, false);
  EndRoute(kGraph);
  const Address cached = Transient(16 * kMiB);
  Free(cached);
  EXPECT_EQ(allocator().WhyNoMore(""),
            "on the device: 512 bytes in private pools, 2.00 MiB free beside "
            "blocks of private pools, 12.00 MiB free in private pools, 16.00 "
            "MiB cached, in 30.00 MiB of reserved memory");
  Release(kGraph);
}

TEST_F(StayingTest, ARefusalOfWhatOnlyCachedMemoryFills) {
  EXPECT_EQ(allocator().WhyNoMore(""),
            "on the device: nothing, in 0 bytes of reserved memory");
  const Address cached = Transient(16 * kMiB);
  Free(cached);
  EXPECT_EQ(allocator().WhyNoMore(""),
            "on the device: 16.00 MiB cached, in 16.00 MiB of reserved "
            "memory");
}

TEST_F(StayingTest, WithoutTieringThereIsOneReason) {
  DeviceAllocator::Options options;
  options.tiering = false;
  Open(64 * kMiB, options);
  Malloc(2 * kMiB);
  EXPECT_EQ(Stays().of(StayReason::kTieringOff), 2 * kMiB);
}

}  // namespace
}  // namespace stratalloc
