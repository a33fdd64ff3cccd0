// SPDX-License-Identifier: Apache-2.0
// record_stream with a stream of another device: its events belong to that
// device, and default streams of two devices are not one stream.
#include <gtest/gtest.h>

#include "allocator/device_allocator_fixture_test.h"

namespace stratalloc {
namespace {

class TwoDevicesTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    DeviceAllocatorTest::SetUp();
    ASSERT_TRUE(allocator().EnablePeer(DeviceIndex{1}).has_value());
    cudaSetDevice(1);
    ASSERT_EQ(cudaStreamCreateWithFlags(&raw_, cudaStreamNonBlocking),
              cudaSuccess);
    cudaSetDevice(0);
    streams_.push_back(raw_);
    stream_ = OfDevice1(reinterpret_cast<std::uint64_t>(raw_));
  }
  static StreamId OfDevice1(std::uint64_t stream) {
    return StreamElsewhere(DeviceIndex{1}, StreamId{stream});
  }
  std::int64_t Active() { return Of(allocator().Stats().active).current; }
  static void QueriesSayNotReady() {
    ASSERT_EQ(
        cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1), 0);
  }
  // A block that a kernel of the other device reads. Without fences per handle:
  // an event is all that its free can wait for.
  Address ReadElsewhere() {
    const Address address =
        Malloc(8 * kMiB, kDefaultStream, LifetimeClass::kTransient);
    EXPECT_TRUE(allocator().RecordStream(address, stream_).has_value());
    const cudasim_access access{address, 8 * kMiB, 0};
    cudaSetDevice(1);
    cudasim_note_access(raw_, "kernel", &access, 1);
    cudaSetDevice(0);
    return address;
  }

  cudaStream_t raw_ = nullptr;
  StreamId stream_{};
};

// Of what is mapped already, by runs.
TEST_F(DeviceAllocatorTest, AGrantToAPeerThatIsNotReadyIsTriedAgain) {
  const Address address = Malloc(8 * kMiB);
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, CUDA_ERROR_NOT_READY, 0), 0);
  const Status enabled = allocator().EnablePeer(DeviceIndex{1});
  EXPECT_TRUE(enabled.has_value()) << enabled.error().message;
  EXPECT_EQ(allocator().peers().size(), 1u);
  Free(address);
}

// Of this device and of each peer in one call: it waits for the device's work
// on some drivers, and takes microseconds on all.
TEST_F(TwoDevicesTest, MappingForAPeerIsGrantedOnce) {
  const long maps = cudasim_calls("cuMemMap");
  const long grants = cudasim_calls("cuMemSetAccess");
  const Address address = Malloc(2 * kMiB);
  EXPECT_EQ(cudasim_calls("cuMemMap"), maps + 1);
  EXPECT_EQ(cudasim_calls("cuMemSetAccess"), grants + 1);
  Free(address);
}

TEST_F(TwoDevicesTest, ABlockWaitsForAStreamOfAnotherDevice) {
  const long events = cudasim_live_events();
  for (const StreamId stream : {stream_, OfDevice1(Raw(kDefaultStream))}) {
    const Address address = Malloc(1000);
    ASSERT_TRUE(allocator().RecordStream(address, stream).has_value());
    QueriesSayNotReady();
    Free(address);
    EXPECT_EQ(cudasim_live_events(), events + 1);
    Free(Malloc(5000));
    EXPECT_EQ(Active(), 1) << "nobody knows yet that it is done";
    cudasim_clear_faults();
    Free(Malloc(5000));
    EXPECT_EQ(Active(), 0);
    // Kept, because a thread may be waiting for it, and for that device.
    EXPECT_EQ(cudasim_live_events(), events + 1);
  }
  const Address address = Malloc(1000);
  ASSERT_TRUE(allocator().RecordStream(address, NewStream()).has_value());
  Free(address);
  EXPECT_EQ(cudasim_live_events(), events + 2);
}

// Events that are kept are this device's.
TEST_F(TwoDevicesTest, AKeptEventIsNotRecordedElsewhere) {
  const StreamId here = NewStream();
  const Address local = Malloc(1000);
  ASSERT_TRUE(allocator().RecordStream(local, here).has_value());
  Free(local);
  ASSERT_TRUE(allocator().EmptyCache().has_value());  // keeps its event
  const long events = cudasim_live_events();
  const Address address = Malloc(1000);
  ASSERT_TRUE(allocator().RecordStream(address, stream_).has_value());
  Free(address);
  EXPECT_EQ(cudasim_live_events(), events + 1);
  cudaSetDevice(1);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaSetDevice(0);
  Free(Malloc(5000));
  EXPECT_EQ(Active(), 0) << "its event says so";
}

TEST_F(TwoDevicesTest, TheEventStandsBehindTheOtherDevicesWork) {
  const Address address = ReadElsewhere();
  Free(address);
  // Waits, and gives back what the kernel has read by then: TearDown looks for
  // violations.
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(Of(allocator().Stats().reserved_bytes).current, 0);
}

TEST_F(TwoDevicesTest, WithoutAnEventTheOtherDeviceIsWaitedFor) {
  const Address address = ReadElsewhere();
  const long events = cudasim_live_events();
  ASSERT_EQ(cudasim_fail("cudaEventRecord", 1, cudaErrorInvalidResourceHandle,
                         /*forever=*/0),
            0);
  Free(address);
  EXPECT_EQ(cudasim_live_events(), events + 1) << "for the next";
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(Of(allocator().Stats().reserved_bytes).current, 0);
}

}  // namespace
}  // namespace stratalloc
