// SPDX-License-Identifier: Apache-2.0
//
// Four devices, the first without virtual memory management: whose primary
// contexts exist, on which device a thread is, and what one device lacks.

#include <thread>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

class ContextsTest : public SimulatorTest {
 protected:
  void TearDown() override {
    for (int device = 0; device < 4; ++device) {
      EXPECT_EQ(cudasim_set_card(device, "generic"), 0);
    }
    SimulatorTest::TearDown();
  }
  static bool IsActive(int device) {
    unsigned flags = 0;
    int active = -1;
    EXPECT_EQ(cuDevicePrimaryCtxGetState(device, &flags, &active),
              CUDA_SUCCESS);
    return active == 1;
  }
  static int Current() {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    return device;
  }
};

// First of all: contexts are the process's and stay. A program the device is
// linked into is born with the first device's and no other.
TEST_F(ContextsTest, AContextIsMadeByWhoUsesTheDevice) {
  EXPECT_TRUE(IsActive(0));
  for (int device = 1; device < 4; ++device) EXPECT_FALSE(IsActive(device));
  size_t bytes = 0;
  EXPECT_EQ(cuDeviceTotalMem(&bytes, 1), CUDA_SUCCESS);
  int value = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1),
            cudaSuccess);
  EXPECT_FALSE(IsActive(1)) << "asking makes none";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_TRUE(IsActive(1));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 2), CUDA_SUCCESS);
  EXPECT_TRUE(IsActive(2));
  EXPECT_FALSE(IsActive(3));
  ASSERT_EQ(cuDevicePrimaryCtxRelease(2), CUDA_SUCCESS);
  EXPECT_FALSE(IsActive(2));
}

// What a context takes is taken from its own device, once, while it lives.
TEST_F(ContextsTest, AContextIsPaidForByItsDevice) {
  for (int device = 0; device < 4; ++device) {
    ASSERT_EQ(cudasim_set_card(device, "t4"), 0);
  }
  const auto price =
      static_cast<uint64_t>(cudasim_card_figure(3, "context_bytes"));
  ASSERT_GT(price, 0u);
  EXPECT_EQ(cudasim_context_bytes(0), price) << "born with it";
  EXPECT_FALSE(IsActive(3));
  EXPECT_EQ(cudasim_context_bytes(3), 0u);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 3), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_context_bytes(3), price);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(3), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_context_bytes(3), price);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(3), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_context_bytes(3), 0u);
}

TEST_F(ContextsTest, ADeviceThatOthersFilledGetsNoContext) {
  ASSERT_EQ(cudasim_set_card(3, "t4"), 0);
  ASSERT_GT(cudasim_take_memory(3, uint64_t{1} << 60), 0u);
  CUcontext context = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 3), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorMemoryAllocation);
  EXPECT_FALSE(IsActive(3));
  EXPECT_EQ(Current(), 0);
  cudasim_take_memory(3, 0);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 3), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(3), CUDA_SUCCESS);
}

// Texts of errors are what is left, and the versions.
TEST_F(ContextsTest, ADriverThatHasShutDownAnswersFour) {
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, kHandle), cudaSuccess);
  cudasim_shut_down();
  EXPECT_EQ(cudaFree(pointer), cudaErrorCudartUnloading);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorCudartUnloading);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorCudartUnloading);
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorCudartUnloading);
  EXPECT_EQ(cuMemUnmap(0, kHandle), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(cuMemRelease(0), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_DEINITIALIZED);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_DEINITIALIZED, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_DEINITIALIZED");
  cudasim_reset_for_testing();
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

TEST_F(ContextsTest, WhatIsPoppedIsForgotten) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 3), CUDA_SUCCESS);
  std::thread thread([&] {
    ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(Current(), 3);
    void* pointer = nullptr;
    ASSERT_EQ(cudaMalloc(&pointer, kHandle), cudaSuccess);
    EXPECT_EQ(cudasim_used(3), kHandle);
    ASSERT_EQ(cudaFree(pointer), cudaSuccess);
    CUcontext popped = nullptr;
    ASSERT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context);
    ASSERT_EQ(cuCtxGetCurrent(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, nullptr);
    EXPECT_EQ(Current(), 0) << "what the runtime had chosen";
    // The runtime's next call makes that one current, not the popped one.
    ASSERT_EQ(cudaMalloc(&pointer, kHandle), cudaSuccess);
    EXPECT_EQ(cudasim_used(3), 0u);
    EXPECT_EQ(cudasim_used(0), kHandle);
    ASSERT_EQ(cudaFree(pointer), cudaSuccess);
  });
  thread.join();
  EXPECT_EQ(cuDevicePrimaryCtxRelease(3), CUDA_SUCCESS);
}

TEST_F(ContextsTest, OneDeviceMayHaveNoVirtualMemory) {
  for (int device = 0; device < 2; ++device) {
    int supported = -1;
    EXPECT_EQ(
        cuDeviceGetAttribute(
            &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            device),
        CUDA_SUCCESS);
    EXPECT_EQ(supported, device) << "CUDASIM_VMM=off,on";
    CUmemAllocationProp prop = DeviceProp();
    prop.location.id = device;
    CUmemGenericAllocationHandle handle = 0;
    size_t granularity = 0;
    const CUresult expected =
        device == 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    EXPECT_EQ(cuMemGetAllocationGranularity(&granularity, &prop,
                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              expected);
    EXPECT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), expected);
    if (handle != 0) EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
  ASSERT_EQ(cudasim_set_virtual_memory(0, 1), 0);
  CUmemAllocationProp prop = DeviceProp();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(cudasim_set_virtual_memory(0, 0), 0);
  EXPECT_EQ(cudasim_set_virtual_memory(4, 0), -1);
}

}  // namespace
}  // namespace cudasim
