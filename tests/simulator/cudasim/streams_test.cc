// SPDX-License-Identifier: Apache-2.0
//
// What streams and events promise besides order between two of them: default
// streams, priorities, host functions, waits across devices, refused flags.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class StreamsTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    cudasim_set_mode(1);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  void TearDown() override {
    (void)cudaDeviceSynchronize();
    cudasim_clear_errors();
    SimulatorTest::TearDown();
  }
  static void Fill(const Block& block, int value, cudaStream_t stream) {
    EXPECT_EQ(cudaMemsetAsync(block.pointer(), value, kHandle, stream),
              cudaSuccess);
  }
};

// Streams that destroy themselves.
struct OwnStream {
  explicit OwnStream(unsigned flags, int priority = 0) {
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, flags, priority),
              cudaSuccess);
  }
  ~OwnStream() { EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t stream = nullptr;
};

TEST_F(StreamsTest, EachThreadHasADefaultStreamOfItsOwn) {
  Block block;
  Fill(block, 3, cudaStreamPerThread);
  EXPECT_EQ(block.Peek(), 0);
  std::thread([&] {
    // Another stream: nothing to wait for, and no edge to the first.
    EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
    Fill(block, 4, cudaStreamPerThread);
  }).join();
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("race: cudaMemsetAsync on the default "
                                      "stream of thread"));
  EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(cudaStreamPerThread),
            cudaErrorInvalidResourceHandle);
}

TEST_F(StreamsTest, ThreadsDefaultStreamsAreOrderedWithTheLegacyOne) {
  Block block;
  Fill(block, 3, cudaStreamPerThread);
  Fill(block, 4, cudaStreamLegacy);
  std::thread([&] { Fill(block, 5, cudaStreamPerThread); }).join();
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(block.Peek(), 5);
}

TEST_F(StreamsTest, WaitingForABlockingStreamIsNotWaitingForTheDefaultOne) {
  Block block;
  OwnStream blocking(cudaStreamDefault);
  Fill(block, 1, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(blocking.stream), cudaSuccess);
  block.Unmap();
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("unmap-while-pending: "));
}

TEST_F(StreamsTest, UrgentStreamsUsuallyGoFirst) {
  OwnStream late(cudaStreamNonBlocking, 0);
  OwnStream urgent(cudaStreamNonBlocking, -2);
  Block slow;
  Block fast;
  int urgent_first = 0;
  int runs = 0;
  for (int seed = 1; seed <= 200; ++seed) {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudasim_set_seed(seed);
    const auto value = static_cast<char>(seed % 100 + 1);
    ASSERT_EQ(cudaMemsetAsync(slow.pointer(), value, 512, late.stream),
              cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(fast.pointer(), value, 512, urgent.stream),
              cudaSuccess);
    // In half of the runs the first had already gone when the second came.
    if (slow.Peek() == value) continue;
    ++runs;
    unsigned flags = 0;  // any call may let a stream take a step
    for (int calls = 0; slow.Peek() != value && fast.Peek() != value; ++calls) {
      ASSERT_LT(calls, 1000);
      ASSERT_EQ(cudaStreamGetFlags(late.stream, &flags), cudaSuccess);
    }
    if (fast.Peek() == value) ++urgent_first;
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_GT(runs, 50);
  EXPECT_GT(urgent_first, runs * 7 / 10);
  EXPECT_LT(urgent_first, runs);  // a hint, not a rule
}

TEST_F(StreamsTest, HostFunctionsAndCallbacksRunInOrderAndMayNotCallCuda) {
  OwnStream own(cudaStreamNonBlocking);
  static std::vector<int> seen;
  seen.clear();
  ASSERT_EQ(cudaLaunchHostFunc(
                own.stream,
                [](void*) {
                  void* memory = nullptr;
                  seen.push_back(cudaMalloc(&memory, 64));
                },
                nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaStreamAddCallback(
                own.stream,
                [](cudaStream_t, cudaError_t status, void*) {
                  seen.push_back(status);
                },
                nullptr, 0),
            cudaSuccess);
  EXPECT_EQ(
      cudaStreamAddCallback(
          own.stream, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 1),
      cudaErrorInvalidValue);
  ASSERT_EQ(cudaStreamSynchronize(own.stream), cudaSuccess);
  EXPECT_THAT(seen, ElementsAre(cudaErrorNotPermitted, cudaSuccess));
}

TEST_F(StreamsTest, AfterAnErrorOnlyCallbacksRun) {
  OwnStream own(cudaStreamNonBlocking);
  Block block;
  static std::vector<int> seen;
  seen.clear();
  cudasim_set_mode(0);
  EXPECT_NE(cudaMemset(reinterpret_cast<void*>(block.address + kHandle), 0, 1),
            cudaSuccess);
  cudasim_clear_errors();
  cudasim_set_mode(1);
  // Queued while all is well; the device breaks before the stream gets there.
  ASSERT_EQ(cudaLaunchHostFunc(
                own.stream, [](void*) { seen.push_back(-1); }, nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaStreamAddCallback(
                own.stream,
                [](cudaStream_t, cudaError_t status, void*) {
                  seen.push_back(status);
                },
                nullptr, 0),
            cudaSuccess);
  EXPECT_NE(cudaMemset(reinterpret_cast<void*>(block.address + kHandle), 0, 1),
            cudaSuccess);
  cudasim_set_mode(1);  // runs what is queued
  if (seen.size() == 1) EXPECT_THAT(seen, ElementsAre(cudaErrorIllegalAddress));
}

TEST_F(StreamsTest, FlagsThatMeanNothingHereAreRefused) {
  cudaEvent_t event = nullptr;
  // An event for other processes cannot time.
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventBlockingSync),
            cudaSuccess);
  EXPECT_EQ(cudaEventRecordWithFlags(event, nullptr, cudaEventRecordDefault),
            cudaSuccess);
  // Only while a stream captures.
  EXPECT_EQ(cudaEventRecordWithFlags(event, nullptr, cudaEventRecordExternal),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event, 8), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(StreamsTest, MemoryOperationsOfStreamsRefuseByName) {
  EXPECT_EQ(cuStreamWaitValue32(nullptr, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuStreamWriteValue64(nullptr, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cudaStreamCopyAttributes(nullptr, nullptr), cudaErrorNotSupported);
  (void)cudaGetLastError();
}

class TwoDevicesTest : public StreamsTest {};

TEST_F(TwoDevicesTest, AnEventOrdersStreamsOfTwoDevices) {
  Block block;  // on device 0
  void* other = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&other, kHandle), cudaSuccess);
  OwnStream second(cudaStreamNonBlocking);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  OwnStream first(cudaStreamNonBlocking);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  const auto fill = [&](int value, cudaStream_t stream) {
    ASSERT_EQ(cudaMemsetAsync(other, value, 512, stream), cudaSuccess);
  };
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  fill(7, second.stream);
  // An event belongs to the device it was made on.
  EXPECT_EQ(cudaEventRecord(event, second.stream),
            cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
  cudaEvent_t own = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&own, cudaEventDisableTiming),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(own, second.stream), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(first.stream, own, 0), cudaSuccess);
  const cudasim_access access = {reinterpret_cast<uint64_t>(other), 512, 1};
  cudasim_note_access(first.stream, "aten::add_", &access, 1);
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  // The legacy stream of one device does not order those of another.
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  fill(8, nullptr);
  EXPECT_EQ(cudasim_violation_count(), 1);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(own), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
}

TEST_F(StreamsTest, HeldStreamsRunWhatTheyAreToldAndNothingElse) {
  OwnStream one(cudaStreamNonBlocking), two(cudaStreamNonBlocking);
  Block block, other;
  cudasim_hold_streams(1);
  Fill(other, 9, two.stream);
  cudaEvent_t first = nullptr, all = nullptr, before = nullptr;
  for (cudaEvent_t* event : {&first, &all, &before}) {
    ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
              cudaSuccess);
  }
  ASSERT_EQ(cudaEventRecord(before, two.stream), cudaSuccess);
  Fill(block, 1, one.stream);
  ASSERT_EQ(cudaEventRecord(first, one.stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(one.stream, before, 0), cudaSuccess);
  Fill(block, 2, one.stream);
  ASSERT_EQ(cudaEventRecord(all, one.stream), cudaSuccess);
  // However often it is asked.
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(cudaEventQuery(first), cudaErrorNotReady);
    ASSERT_EQ(cudaStreamQuery(two.stream), cudaErrorNotReady);
  }
  EXPECT_EQ(cudasim_run_stream(one.stream, 1), 1);
  EXPECT_EQ(cudaEventQuery(first), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(all), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(before), cudaErrorNotReady);
  EXPECT_EQ(block.Peek(), 1);
  // With what it has to come after.
  EXPECT_EQ(cudasim_run_stream(one.stream, 5), 1);
  EXPECT_EQ(cudaEventQuery(before), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(all), cudaSuccess);
  EXPECT_EQ(cudasim_run_stream(one.stream, 5), 0);
  EXPECT_EQ(cudasim_run_stream(reinterpret_cast<void*>(0x77), 1), -1);
  // Waiting is an end of waiting.
  Fill(block, 3, one.stream);
  ASSERT_EQ(cudaStreamSynchronize(one.stream), cudaSuccess);
  EXPECT_EQ(block.Peek(), 3);
  cudasim_hold_streams(0);
  Fill(block, 4, one.stream);
  while (cudaStreamQuery(one.stream) == cudaErrorNotReady) {
  }
  EXPECT_EQ(block.Peek(), 4);
  for (cudaEvent_t event : {first, all, before}) {
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
}

}  // namespace
}  // namespace cudasim

int main(int argc, char** argv) {
  setenv("CUDASIM_DEVICES", "2", 1);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
