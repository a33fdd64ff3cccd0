// SPDX-License-Identifier: Apache-2.0
//
// Threads that allocate, copy, hand over and free at the same time, in both
// modes. What matters is the run under ThreadSanitizer, and that a correct
// program is never accused.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 60;
constexpr size_t kBytes = size_t{64} << 10;

class ThreadsTest : public SimulatorTest,
                    public testing::WithParamInterface<int> {};

// Fills a block on one stream, moves it to a second block on another, reads it
// back, and gives everything up; each edge is there.
void Work(int thread) {
  std::mt19937 random(thread);
  cudaStream_t streams[2];
  cudaEvent_t event = nullptr;
  void* pinned = nullptr;
  for (cudaStream_t& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
              cudaSuccess);
  }
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, kBytes, 0), cudaSuccess);
  for (int step = 0; step < kSteps; ++step) {
    Block from;
    Block to(1 + static_cast<int>(random() % 3));
    const int value = static_cast<int>(random() % 100) + 1;
    std::memset(pinned, value, kBytes);
    ASSERT_EQ(cudaMemcpyAsync(from.pointer(), pinned, kBytes,
                              cudaMemcpyHostToDevice, streams[0]),
              cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, streams[0]), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(streams[1], event, 0), cudaSuccess);
    const size_t offset = to.bytes() - kBytes;
    ASSERT_EQ(cudaMemcpyAsync(static_cast<char*>(to.pointer()) + offset,
                              from.pointer(), kBytes, cudaMemcpyDeviceToDevice,
                              streams[1]),
              cudaSuccess);
    switch (random() % 3) {
      case 0:
        ASSERT_EQ(cudaStreamSynchronize(streams[1]), cudaSuccess);
        break;
      case 1:
        ASSERT_EQ(cudaEventRecord(event, streams[1]), cudaSuccess);
        ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
        break;
      default:
        while (cudaStreamQuery(streams[1]) == cudaErrorNotReady) {
        }
    }
    ASSERT_EQ(to.Peek(offset), value);
    ASSERT_EQ(to.Peek(to.bytes() - 1), value);
  }
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  for (cudaStream_t stream : streams) {
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
}

TEST_P(ThreadsTest, CorrectProgramsAreNeverAccused) {
  cudasim_set_mode(GetParam());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(Work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  EXPECT_EQ(cudasim_used(0), 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, ThreadsTest, testing::Values(0, 1),
                         [](const testing::TestParamInfo<int>& mode) {
                           return mode.param == 0 ? "Eager" : "Async";
                         });

}  // namespace
}  // namespace cudasim
