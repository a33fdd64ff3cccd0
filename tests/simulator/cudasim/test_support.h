// SPDX-License-Identifier: Apache-2.0
//
// test_support.h: what the tests of the simulated device share: a fixture that
// starts clean and ends by asking for leaks, and small blocks of device memory
// made the way an allocator makes them.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_TEST_SUPPORT_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_TEST_SUPPORT_H_

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/simulator/cudasim/control.h"

namespace cudasim {

inline constexpr size_t kHandle = size_t{2} << 20;

inline CUmemAllocationProp DeviceProp() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  return prop;
}

inline CUresult Grant(CUdeviceptr address, size_t bytes,
                      CUmemAccess_flags flags) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  access.flags = flags;
  return cuMemSetAccess(address, bytes, &access, 1);
}

// One mapped and granted block of `handles` handles.
class Block {
 public:
  explicit Block(int handles = 1) : handles_(handles) {
    EXPECT_EQ(cuMemAddressReserve(&address, bytes(), 0, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < handles_; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      const CUmemAllocationProp prop = DeviceProp();
      EXPECT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemMap(address + i * kHandle, kHandle, 0, handle, 0),
                CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    }
    EXPECT_EQ(Grant(address, bytes(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              CUDA_SUCCESS);
    mapped_ = true;
  }
  ~Block() {
    cudasim_clear_errors();  // a broken device takes nothing back
    Unmap();
    EXPECT_EQ(cuMemAddressFree(address, bytes()), CUDA_SUCCESS);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void Unmap() {
    if (!mapped_) return;
    EXPECT_EQ(cuMemUnmap(address, bytes()), CUDA_SUCCESS);
    mapped_ = false;
  }
  size_t bytes() const { return handles_ * kHandle; }
  void* pointer() const { return reinterpret_cast<void*>(address); }
  // What is there now, whatever the streams still have to do.
  char Peek(size_t offset = 0) const {
    return static_cast<char*>(cudasim_host_view(pointer()))[offset];
  }

  CUdeviceptr address = 0;

 private:
  const int handles_;
  bool mapped_ = false;
};

class SimulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_mode(0);
    cudasim_set_seed(1);
    cudasim_set_capacity(0, uint64_t{1} << 30);
  }
  void TearDown() override {
    cudasim_clear_faults();
    cudasim_clear_errors();
    char text[4096];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
    cudasim_reset_for_testing();
    cudasim_set_mode(0);
  }

  static std::string Violation(long index) {
    char text[1024] = "";
    return cudasim_violation(index, text, sizeof(text)) < 0 ? "" : text;
  }
};

// Async mode with two streams, an event and a pinned buffer of fives.
class TwoStreamsTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    cudasim_set_mode(1);
    ASSERT_EQ(cudaHostAlloc(&pinned_, kHandle, 0), cudaSuccess);
    std::memset(pinned_, 5, kHandle);
    for (cudaStream_t* stream : {&one_, &two_}) {
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                cudaSuccess);
    }
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
              cudaSuccess);
  }
  void TearDown() override {
    // What a planted mistake left queued may run into memory that is gone.
    (void)cudaDeviceSynchronize();
    cudasim_clear_errors();
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(one_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(two_), cudaSuccess);
    SimulatorTest::TearDown();
  }

  void CopyIn(const Block& block, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(block.pointer(), pinned_, kHandle,
                              cudaMemcpyHostToDevice, stream),
              cudaSuccess);
  }
  void CopyOut(const Block& block, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(pinned_, block.pointer(), kHandle,
                              cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
  }

  void* pinned_ = nullptr;
  cudaStream_t one_ = nullptr;
  cudaStream_t two_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_TEST_SUPPORT_H_
