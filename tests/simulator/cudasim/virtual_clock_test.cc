// SPDX-License-Identifier: Apache-2.0
//
// Virtual time: what an operation takes, what waits for what, and that neither
// the mode nor the machine matters.

#include "tests/simulator/cudasim/virtual_clock.h"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

// Round figures, so that the expected times can be read off.
constexpr char kProfile[] = R"({
  "hbm_gb_per_s": 1000, "pcie_up_gb_per_s": 10, "pcie_down_gb_per_s": 20,
  "pageable_up_gb_per_s": 5, "pageable_down_gb_per_s": 5, "peer_gb_per_s": 50,
  "fp64_tflops": 1, "fp32_tflops": 10, "tf32_tflops": 50, "fp16_tflops": 100,
  "bf16_tflops": 100, "fp8_tflops": 200, "int8_tflops": 200,
  "compute_efficiency": 1, "memory_efficiency": 1,
  "kernel_ns": 1000, "copy_ns": 2000, "memset_ns": 500,
  "operator_ns": 0, "call_ns": 0, "calls_ns": {}
})";

constexpr size_t kMegabyte = 1000000;

class VirtualClockTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    ASSERT_EQ(cudasim_apply_profile(0, kProfile), 0);
    cudasim_set_capacity(0, uint64_t{1} << 30);
    cudasim_virtual_reset();
  }
  void TearDown() override {
    ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
    cudasim_set_background(0);
    SimulatorTest::TearDown();
  }
  // Runs the program in both modes; each must say the same.
  void InBothModes(const std::function<std::vector<int64_t>()>& program,
                   const std::vector<int64_t>& wanted) {
    for (const int mode : {0, 1}) {
      for (const uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(mode == 0 ? "eager" : "async");
        cudasim_set_mode(mode);
        cudasim_set_seed(seed);
        cudasim_virtual_reset();
        EXPECT_EQ(program(), wanted);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
    }
    cudasim_set_mode(0);
  }
};

class Pinned {
 public:
  explicit Pinned(size_t bytes) {
    EXPECT_EQ(cudaHostAlloc(&pointer, bytes, 0), cudaSuccess);
  }
  ~Pinned() { EXPECT_EQ(cudaFreeHost(pointer), cudaSuccess); }
  void* pointer = nullptr;
};

class TestStream {
 public:
  explicit TestStream(unsigned flags = cudaStreamNonBlocking,
                      int priority = 0) {
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, flags, priority),
              cudaSuccess);
  }
  ~TestStream() {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  int64_t end() const { return cudasim_stream_virtual_ns(stream); }
  cudaStream_t stream = nullptr;
};

TEST_F(VirtualClockTest, CopiesTakeLatencyAndBandwidth) {
  Block block;
  Pinned pinned(kMegabyte);
  std::vector<char> pageable(kMegabyte);
  InBothModes(
      [&] {
        TestStream stream;
        std::vector<int64_t> times;
        cudaMemcpyAsync(block.pointer(), pinned.pointer, kMegabyte,
                        cudaMemcpyHostToDevice, stream.stream);
        times.push_back(stream.end());              // 10 GB/s
        times.push_back(cudasim_virtual_now_ns());  // nobody waits
        cudaMemcpyAsync(pinned.pointer, block.pointer(), kMegabyte,
                        cudaMemcpyDeviceToHost, stream.stream);
        times.push_back(stream.end());  // 20 GB/s, after the first
        cudaMemsetAsync(block.pointer(), 0, kMegabyte, stream.stream);
        times.push_back(stream.end());  // 1000 GB/s
        cudaMemcpyAsync(block.pointer(), pageable.data(), kMegabyte,
                        cudaMemcpyHostToDevice, stream.stream);
        times.push_back(stream.end());              // 5 GB/s
        times.push_back(cudasim_virtual_now_ns());  // the caller waits
        return times;
      },
      {102000, 0, 154000, 155500, 357500, 357500});
  EXPECT_EQ(cudasim_virtual_total("h2d_bytes"), 2 * kMegabyte);
  EXPECT_EQ(cudasim_virtual_total("d2h_bytes"), kMegabyte);
  EXPECT_EQ(cudasim_virtual_total("nonsense"), -1);
}

TEST_F(VirtualClockTest, KernelsTakeTheLargerOfOperationsAndBytes) {
  InBothModes(
      [&] {
        TestStream stream;
        std::vector<int64_t> times;
        // 10 TFLOP/s: 10^9 operations are 100 us; 1000 GB/s: 10^6 bytes 1 us.
        cudasim_operator_cost(stream.stream, 1e9, 1e6, CUDASIM_FP32);
        times.push_back(stream.end());
        cudasim_operator_cost(stream.stream, 1e9, 1e6, CUDASIM_BF16);
        times.push_back(stream.end());
        cudasim_operator_cost(stream.stream, 0, 1e6, CUDASIM_FP32);
        times.push_back(stream.end());
        return times;
      },
      {101000, 112000, 114000});
}

TEST_F(VirtualClockTest, StreamsOverlapEnginesDoNot) {
  Block block(2);
  Pinned pinned(kMegabyte);
  InBothModes(
      [&] {
        TestStream a;
        TestStream b;
        std::vector<int64_t> times;
        cudasim_operator_cost(a.stream, 1e9, 0, CUDASIM_FP32);
        times.push_back(a.end());
        // A copy beside it.
        cudaMemcpyAsync(block.pointer(), pinned.pointer, kMegabyte,
                        cudaMemcpyHostToDevice, b.stream);
        times.push_back(b.end());
        // The other stream's kernel waits for the engine, its latency passes
        // meanwhile.
        TestStream c;
        cudasim_operator_cost(c.stream, 1e9, 0, CUDASIM_FP32);
        times.push_back(c.end());
        // A second copy up shares the engine of the first.
        cudaMemcpyAsync(static_cast<char*>(block.pointer()) + kHandle,
                        pinned.pointer, kMegabyte, cudaMemcpyHostToDevice,
                        c.stream);
        times.push_back(c.end());
        return times;
      },
      {101000, 102000, 201000, 303000});
}

// 10 GB/s up and 20 down, each 100 us alone. The second of two copies gets what
// the first one leaves of both rates.
TEST_F(VirtualClockTest, BothDirectionsOfTheBusShareItsRate) {
  Block block(2);
  Pinned pinned(2 * kMegabyte);
  char* const other = static_cast<char*>(block.pointer()) + kHandle;
  const auto end_of = [&](double both, bool up_first) {
    EXPECT_EQ(
        cudasim_apply_profile(
            0,
            ("{\"pcie_both_gb_per_s\": " + std::to_string(both) + "}").c_str()),
        0);
    cudasim_virtual_reset();
    TestStream up;
    TestStream down;
    for (const bool is_up : {up_first, !up_first}) {
      if (is_up) {
        cudaMemcpyAsync(block.pointer(), pinned.pointer, kMegabyte,
                        cudaMemcpyHostToDevice, up.stream);
      } else {
        cudaMemcpyAsync(pinned.pointer, other, 2 * kMegabyte,
                        cudaMemcpyDeviceToHost, down.stream);
      }
    }
    EXPECT_EQ(up_first ? up.end() : down.end(), 102000) << "it came first";
    const int64_t end = up_first ? down.end() : up.end();
    EXPECT_EQ(cudasim_virtual_total(up_first ? "down_busy_ns" : "up_busy_ns"),
              end - 2000);
    return end;
  };
  EXPECT_EQ(end_of(0, false), 102000) << "they are independent";
  EXPECT_EQ(end_of(30, false), 102000);
  EXPECT_EQ(end_of(24, false), 162000) << "4 GB/s for 100 us, then 10";
  EXPECT_EQ(end_of(24, true), 132000) << "14 GB/s for 100 us, then 20";
  EXPECT_EQ(end_of(20, false), 192000) << "a tenth of its own";
}

// Kernels of 100 us and 1 us of latency; the urgent stream's comes last.
TEST_F(VirtualClockTest, KernelsOfUrgentStreamsDoNotWaitForOthers) {
  InBothModes(
      [] {
        TestStream ordinary;
        TestStream later;
        TestStream urgent(cudaStreamNonBlocking, -1);
        std::vector<int64_t> times;
        for (TestStream* each : {&ordinary, &urgent, &later}) {
          cudasim_operator_cost(each->stream, 1e9, 0, CUDASIM_FP32);
          times.push_back(each->end());
        }
        // Equals wait for each other.
        TestStream as_urgent(cudaStreamNonBlocking, -1);
        cudasim_operator_cost(as_urgent.stream, 1e9, 0, CUDASIM_FP32);
        times.push_back(as_urgent.end());
        return times;
      },
      {101000, 101000, 301000, 201000});
}

// What the driver's function makes, and with copies, which no priority helps.
TEST_F(VirtualClockTest, CopiesOfUrgentStreamsWaitForOthers) {
  Block block(2);
  Pinned pinned(kMegabyte);
  InBothModes(
      [&] {
        TestStream ordinary;
        CUstream urgent = nullptr;
        EXPECT_EQ(
            cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, -5),
            CUDA_SUCCESS);
        cudasim_operator_cost(ordinary.stream, 1e9, 0, CUDASIM_FP32);
        cudasim_operator_cost(urgent, 1e9, 0, CUDASIM_FP32);
        std::vector<int64_t> times = {cudasim_stream_virtual_ns(urgent)};
        cudasim_virtual_reset();
        cudaMemcpyAsync(block.pointer(), pinned.pointer, kMegabyte,
                        cudaMemcpyHostToDevice, ordinary.stream);
        cudaMemcpyAsync(static_cast<char*>(block.pointer()) + kHandle,
                        pinned.pointer, kMegabyte, cudaMemcpyHostToDevice,
                        urgent);
        times.push_back(cudasim_stream_virtual_ns(urgent));
        EXPECT_EQ(cudaStreamSynchronize(urgent), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(urgent), cudaSuccess);
        return times;
      },
      {101000, 202000});
}

TEST_F(VirtualClockTest, SomethingThatWaitsDoesNotBlockAnEngine) {
  Block block(2);
  Pinned pinned(kMegabyte);
  TestStream a;
  TestStream b;
  TestStream c;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  cudasim_operator_cost(a.stream, 10e9, 0, CUDASIM_FP32);  // until 1001000
  ASSERT_EQ(cudaEventRecord(event, a.stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b.stream, event, 0), cudaSuccess);
  cudaMemcpyAsync(block.pointer(), pinned.pointer, kMegabyte,
                  cudaMemcpyHostToDevice, b.stream);
  EXPECT_EQ(b.end(), 1001000 + 102000);
  cudaMemcpyAsync(static_cast<char*>(block.pointer()) + kHandle, pinned.pointer,
                  kMegabyte, cudaMemcpyHostToDevice, c.stream);
  EXPECT_EQ(c.end(), 102000);
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(VirtualClockTest, TheDefaultStreamWaitsForBlockingStreamsOnly) {
  InBothModes(
      [] {
        TestStream blocking(cudaStreamDefault);
        TestStream other;
        cudasim_operator_cost(blocking.stream, 0, 1e6, CUDASIM_FP32);
        cudasim_operator_cost(other.stream, 0, 9e6, CUDASIM_FP32);
        cudasim_operator_cost(nullptr, 0, 0, CUDASIM_FP32);
        std::vector<int64_t> times = {cudasim_stream_virtual_ns(nullptr)};
        cudasim_operator_cost(blocking.stream, 0, 0, CUDASIM_FP32);
        times.push_back(blocking.end());
        return times;
      },
      {3000, 4000});
}

TEST_F(VirtualClockTest, EventsMeasureVirtualTime) {
  InBothModes(
      [] {
        TestStream stream;
        cudaEvent_t start = nullptr;
        cudaEvent_t end = nullptr;
        EXPECT_EQ(cudaEventCreate(&start), cudaSuccess);
        EXPECT_EQ(cudaEventCreate(&end), cudaSuccess);
        EXPECT_EQ(cudaEventRecord(start, stream.stream), cudaSuccess);
        cudasim_operator_cost(stream.stream, 1e9, 0, CUDASIM_FP32);
        EXPECT_EQ(cudaEventRecord(end, stream.stream), cudaSuccess);
        float milliseconds = -1;
        EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end),
                  cudaErrorNotReady);
        EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
        EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
        EXPECT_FLOAT_EQ(milliseconds, 0.101f);
        EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
        return std::vector<int64_t>{cudasim_virtual_now_ns()};
      },
      {101000});
}

TEST_F(VirtualClockTest, AQuerySaysNoUntilTheThreadWaits) {
  TestStream stream;
  cudasim_operator_cost(stream.stream, 1e9, 0, CUDASIM_FP32);
  EXPECT_EQ(cudaStreamQuery(stream.stream), cudaErrorNotReady);
  EXPECT_EQ(cudasim_virtual_now_ns(), 0);
  // In between it did something: not waiting yet.
  cudasim_operator_cost(stream.stream, 1e9, 0, CUDASIM_FP32);
  EXPECT_EQ(cudaStreamQuery(stream.stream), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream.stream), cudaSuccess);
  EXPECT_EQ(cudasim_virtual_now_ns(), 202000);
}

TEST_F(VirtualClockTest, CallsCostWhatTheProfileSays) {
  ASSERT_EQ(cudasim_apply_profile(
                0, R"({"call_ns": 100, "calls_ns": {"cudaGetDevice": 7}})"),
            0);
  cudasim_virtual_reset();
  int device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(cudasim_virtual_now_ns(), 7);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudasim_virtual_now_ns(), 107);
  EXPECT_EQ(cudasim_virtual_total("calls_ns"), 107);
}

// 3 mappings and one device: what is made, granted, taken away and pinned.
TEST_F(VirtualClockTest, CallsCostWhatTheyHaveToDo) {
  ASSERT_EQ(cudasim_apply_profile(0, R"({
    "grant_ns": 10, "unmap_ns": 200,
    "create_ns_per_gib": 512000, "pin_ns_per_gib": 1024000})"),
            0);
  cudasim_virtual_reset();
  {
    Block block(3);
    EXPECT_EQ(cudasim_virtual_now_ns(), 3 * 1000 + 3 * 10);
    cudasim_virtual_reset();
    // Again, as for another device: each mapping once more.
    ASSERT_EQ(
        Grant(block.address, 2 * kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        CUDA_SUCCESS);
    EXPECT_EQ(cudasim_virtual_now_ns(), 2 * 10);
    cudasim_virtual_reset();
  }
  EXPECT_EQ(cudasim_virtual_now_ns(), 3 * 200);
  cudasim_virtual_reset();
  { Pinned pinned(size_t{1} << 20); }
  EXPECT_EQ(cudasim_virtual_now_ns(), 1000);
  cudasim_virtual_reset();
  std::vector<char> own(size_t{2} << 20);
  ASSERT_EQ(cudaHostRegister(own.data(), own.size(), 0), cudaSuccess);
  ASSERT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(cudasim_virtual_now_ns(), 2000);
  // What is refused has done nothing.
  cudasim_virtual_reset();
  EXPECT_EQ(cuMemUnmap(kHandle, kHandle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cudasim_virtual_now_ns(), 0);
}

// Work of another mapping and stream, of 100 us.
TEST_F(VirtualClockTest, AnUnmapMayWaitForAllWorkOfItsDevice) {
  Block busy(1);
  for (const int waits : {0, 1}) {
    cudasim_set_unmap_waits(waits);
    cudasim_set_mode(1);
    cudasim_virtual_reset();
    Block other(1);
    TestStream stream;
    cudasim_operator_cost(stream.stream, 1e9, 0, CUDASIM_FP32);
    EXPECT_EQ(cudaMemsetAsync(busy.pointer(), 7, kMegabyte, stream.stream),
              cudaSuccess);
    other.Unmap();
    EXPECT_EQ(cudasim_virtual_now_ns(), waits * (101000 + 500 + 1000));
    EXPECT_EQ(busy.Peek(), waits != 0 ? 7 : 0);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudasim_set_mode(0);
    ASSERT_EQ(cudaMemset(busy.pointer(), 0, kMegabyte), cudaSuccess);
  }
}

TEST_F(VirtualClockTest, BackgroundThreadsStopNobody) {
  Block block(2);
  Pinned pinned(kMegabyte);
  cudasim_host_work(5000);
  std::thread background([&] {
    cudasim_set_background(1);
    TestStream stream;
    cudaMemcpyAsync(block.pointer(), pinned.pointer, kMegabyte,
                    cudaMemcpyHostToDevice, stream.stream);
    EXPECT_EQ(stream.end(), 107000);  // not before the program's now
    EXPECT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
    EXPECT_EQ(cudasim_virtual_now_ns(), 107000);
  });
  background.join();
  EXPECT_EQ(cudasim_virtual_now_ns(), 5000);
  EXPECT_EQ(cudasim_virtual_total("host_wait_ns"), 0);
  // What it brought is not there before: no event says so, the bytes do.
  TestStream stream;
  cudaMemsetAsync(block.pointer(), 0, kMegabyte, stream.stream);
  EXPECT_EQ(stream.end(), 107000 + 500 + 1000);
  // Another mapping is.
  TestStream other;
  cudaMemsetAsync(static_cast<char*>(block.pointer()) + kHandle, 0, kMegabyte,
                  other.stream);
  EXPECT_EQ(other.end(), 5000 + 500 + 1000);
}

TEST_F(VirtualClockTest, WhoWaitedForAThreadGoesOnAtItsTime) {
  const auto in_background = [](int64_t works) {
    std::thread([=] {
      cudasim_set_background(1);
      cudasim_host_work(static_cast<double>(works));
      cudasim_thread_release(1);
    }).join();
  };
  in_background(700);
  EXPECT_EQ(cudasim_virtual_now_ns(), 0);
  cudasim_thread_acquire(2);  // for something else
  EXPECT_EQ(cudasim_virtual_now_ns(), 0);
  cudasim_thread_acquire(1);
  EXPECT_EQ(cudasim_virtual_now_ns(), 700);
  EXPECT_EQ(cudasim_virtual_total("host_wait_ns"), 700);
  in_background(100);
  cudasim_thread_acquire(1);
  EXPECT_EQ(cudasim_virtual_now_ns(), 800) << "it began at 700";
  in_background(100);
  cudasim_host_work(5000);
  cudasim_thread_acquire(1);
  EXPECT_EQ(cudasim_virtual_now_ns(), 5800) << "it was there long before";
}

TEST_F(VirtualClockTest, AChecksumOfTheHostTakesItsTime) {
  ASSERT_EQ(cudasim_apply_profile(0, R"({"host_checksum_gb_per_s": 4})"), 0);
  cudasim_virtual_reset();
  cudasim_host_checksum(kMegabyte);
  EXPECT_EQ(cudasim_virtual_now_ns(), 250000);
}

TEST_F(VirtualClockTest, ChoosingVictimsTakesTimePerCandidate) {
  ASSERT_EQ(cudasim_apply_profile(0, R"({"choose_ns_per_candidate": 70})"), 0);
  cudasim_virtual_reset();
  cudasim_host_chose(300);
  EXPECT_EQ(cudasim_virtual_now_ns(), 21000);
}

TEST_F(VirtualClockTest, WithoutACardNothingTakesTime) {
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
  cudasim_virtual_reset();
  Block block;
  ASSERT_EQ(cudaMemset(block.pointer(), 0, kMegabyte), cudaSuccess);
  cudasim_operator_cost(nullptr, 1e12, 1e12, CUDASIM_FP32);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudasim_virtual_now_ns(), 0);
  EXPECT_EQ(cudasim_device_virtual_ns(0), 0);
  EXPECT_EQ(cudasim_virtual_total("memset_bytes"), 0);
}

TEST_F(VirtualClockTest, ACallCanBurnRealTime) {
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
  const auto cpu_ns = [](int calls) {
    timespec start = {};
    timespec end = {};
    int device = 0;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (int i = 0; i < calls; ++i) cudaGetDevice(&device);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (end.tv_sec - start.tv_sec) * int64_t{1000000000} + end.tv_nsec -
           start.tv_nsec;
  };
  ASSERT_EQ(cudasim_apply_profile(
                0, R"({"burn_calls_ns": {"cudaGetDevice": 20000}})"),
            0);
  // Half of what was asked for: the bound is loose, the machine is shared.
  EXPECT_GT(cpu_ns(100), 100 * 10000);
}

}  // namespace
}  // namespace cudasim
