// SPDX-License-Identifier: Apache-2.0
//
// Kernels fail closed, twins compute, and planned failures come when planned.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

// What nvcc generates for each kernel of a program.
extern "C" {
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFunction(void** binary, const char* function,
                            char* device_function, const char* device_name,
                            int thread_limit, uint3* thread, uint3* block,
                            dim3* block_size, dim3* grid_size, int* warp);
void __cudaUnregisterFatBinary(void** binary);
}

namespace cudasim {
namespace {

using testing::HasSubstr;

// Stands for the host stub of a kernel; only its address matters.
void Stub() {}
void OtherStub() {}

void FillTwin(void** arguments, const unsigned grid[3],
              const unsigned block[3]) {
  const CUdeviceptr to = *static_cast<CUdeviceptr*>(arguments[0]);
  const int value = *static_cast<int*>(arguments[1]);
  const size_t count = size_t{grid[0]} * block[0];
  auto* bytes =
      static_cast<char*>(cudasim_host_view(reinterpret_cast<const void*>(to)));
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(value);
  const cudasim_access access = {to, count, 1};
  cudasim_note_access(cudasim_current_stream(), "Fill", &access, 1);
}

class LaunchTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    binary_ = __cudaRegisterFatBinary(nullptr);
    Register(reinterpret_cast<const char*>(&Stub), "_ZN5tests4FillEPcii");
    Register(reinterpret_cast<const char*>(&OtherStub), "_ZN5tests5OtherEv");
  }
  void TearDown() override {
    __cudaUnregisterFatBinary(binary_);
    SimulatorTest::TearDown();
  }
  void Register(const char* stub, const char* name) {
    __cudaRegisterFunction(binary_, stub, nullptr, name, -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
  }
  cudaError_t Launch(void (*stub)(), void** arguments,
                     cudaStream_t stream = nullptr) {
    return cudaLaunchKernel(reinterpret_cast<const void*>(stub), dim3(4),
                            dim3(32), arguments, 0, stream);
  }

  void** binary_ = nullptr;
};

TEST_F(LaunchTest, AKernelWithoutATwinFailsByNameAndBreaksTheDevice) {
  EXPECT_EQ(Launch(&OtherStub, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(cudasim_launches_without_twin(), 1);
  char name[64] = "";
  EXPECT_GT(cudasim_last_missing_twin(name, sizeof(name)), 0);
  EXPECT_STREQ(name, "tests::Other()");
  EXPECT_THAT(cudaGetErrorString(cudaErrorNotSupported),
              HasSubstr("the simulated device has no code for tests::Other()"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNotSupported);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorNotSupported);
  cudasim_clear_errors();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNotSupported),
               "operation not supported");
}

TEST_F(LaunchTest, AnUnknownFunctionIsNoKernel) {
  int nothing = 0;
  EXPECT_EQ(cudaLaunchKernel(&nothing, dim3(1), dim3(1), nullptr, 0, nullptr),
            cudaErrorInvalidDeviceFunction);
  cudaFuncAttributes attributes;
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, &nothing),
            cudaErrorInvalidDeviceFunction);
  ASSERT_EQ(
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&Stub)),
      cudaSuccess);
  EXPECT_NE(attributes.ptxVersion, 0);
  EXPECT_NE(attributes.binaryVersion, 0);
}

TEST_F(LaunchTest, ATwinComputesOnTheBytesOfDeviceAddresses) {
  cudasim_register_twin("tests::Fill", FillTwin);
  Block block;
  CUdeviceptr to = block.address;
  int value = 9;
  void* arguments[] = {&to, &value};
  EXPECT_EQ(Launch(&Stub, arguments), cudaSuccess);
  EXPECT_EQ(cudasim_launches_with_twin(), 1);
  EXPECT_EQ(cudasim_launches_without_twin(), 0);
  EXPECT_EQ(block.Peek(127), 9);
  EXPECT_EQ(block.Peek(128), 0);
}

TEST_F(LaunchTest, WhatATwinTouchedIsPendingUntilAnEdge) {
  cudasim_set_mode(1);
  cudasim_register_twin("_ZN5tests4FillEPcii", FillTwin);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  Block block;
  CUdeviceptr to = block.address;
  int value = 9;
  void* arguments[] = {&to, &value};
  EXPECT_EQ(Launch(&Stub, arguments, stream), cudaSuccess);
  block.Unmap();
  ASSERT_EQ(cudasim_violation_count(), 1);
  char text[512];
  cudasim_violation(0, text, sizeof(text));
  EXPECT_THAT(text, HasSubstr("Fill on stream 0x57"));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(LaunchTest, AnotherDevicesStreamTakesNoLaunch) {
  cudasim_register_twin("tests::Fill", FillTwin);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  void* there = nullptr;
  ASSERT_EQ(cudaMalloc(&there, 1), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Block block;
  CUdeviceptr to = block.address;
  int value = 9;
  void* arguments[] = {&to, &value};
  EXPECT_EQ(Launch(&Stub, arguments, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(block.Peek(), 0);
  char byte = 5;
  EXPECT_EQ(cudaMemcpyAsync(there, &byte, 1, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*static_cast<char*>(cudasim_host_view(there)), 5);
  EXPECT_EQ(cudaFree(there), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(LaunchTest, KernelsOfModulesAreFoundByName) {
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&function, module, "module_fill"),
            CUDA_SUCCESS);
  Block block;
  CUdeviceptr to = block.address;
  int value = 3;
  void* arguments[] = {&to, &value};
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments,
                           nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
  cudasim_clear_errors();
  cudasim_register_twin("module_fill", FillTwin);
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments,
                           nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(block.Peek(31), 3);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

// torch.cuda._sleep's kernel, as libtorch_cuda registers it.
constexpr char kSpin[] =
    "_ZN2at4cuda40_GLOBAL__N__758183f4_8_Sleep_cu_088d913f11spin_kernelEl";

class SpinTest : public LaunchTest {
 protected:
  void SetUp() override {
    LaunchTest::SetUp();
    Register(reinterpret_cast<const char*>(&SpinStub), kSpin);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&event_), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudasim_set_card(0, "generic"), 0);
    LaunchTest::TearDown();
  }
  static void SpinStub() {}
  void Spin(int64_t cycles) {
    void* arguments[] = {&cycles};
    ASSERT_EQ(Launch(&SpinStub, arguments, stream_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(SpinTest, ItTakesItsCyclesAtTheCardsClock) {
  ASSERT_EQ(cudasim_set_card(0, "t4"), 0);
  cudasim_virtual_reset();
  const double khz = cudasim_card_figure(0, "clock_khz");
  Spin(static_cast<int64_t>(50 * khz));  // 50 ms
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  const int64_t end = cudasim_stream_virtual_ns(stream_);
  EXPECT_GE(end, 50'000'000);
  EXPECT_LE(end, 50'100'000);
  // No engine is busy with it.
  EXPECT_EQ(cudasim_virtual_total("compute_busy_ns"), 0);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_GE(cudasim_virtual_now_ns(), 50'000'000);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(cudasim_launches_with_twin(), 1);
}

TEST_F(SpinTest, InAsyncModeTheStreamIsBusyUntilItIsDrained) {
  cudasim_set_mode(1);
  Spin(100'000'000);  // about 50 ms: as many turns
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  // Who polls gets there, however long it spins.
  Spin(int64_t{1} << 50);
  int polls = 0;
  while (cudaEventQuery(event_) == cudaErrorNotReady) ++polls;
  EXPECT_GT(polls, 10);
  EXPECT_LT(polls, 1000);
}

TEST_F(SpinTest, ItIsCaptured) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  int64_t cycles = 1000;
  void* arguments[] = {&cycles};
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_EQ(Launch(&SpinStub, arguments, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

class FaultTest : public SimulatorTest {};

TEST_F(FaultTest, TheNthCallFailsAndOnlyThatOne) {
  ASSERT_EQ(cudasim_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
  const CUmemAllocationProp prop = DeviceProp();
  CUmemGenericAllocationHandle first = 0;
  CUmemGenericAllocationHandle second = 0;
  EXPECT_EQ(cuMemCreate(&first, kHandle, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemCreate(&second, kHandle, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemCreate(&second, kHandle, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_calls("cuMemCreate"), 3);
  EXPECT_GE(cudasim_calls(nullptr), 3);
  EXPECT_EQ(cudasim_live_handles(), 2);
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(second), CUDA_SUCCESS);
}

TEST_F(FaultTest, AFailureCanLastUntilItIsCleared) {
  ASSERT_EQ(
      cudasim_fail("cudaEventCreateWithFlags", 1, cudaErrorMemoryAllocation, 1),
      0);
  cudaEvent_t event = nullptr;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), cudaErrorMemoryAllocation);
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  cudasim_clear_faults();
  EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(FaultTest, AFailureCanComeBackAtEverySoManythCall) {
  ASSERT_EQ(cudasim_fail("cudaMemGetInfo", 2, 600, /*every=*/3), 0);
  std::string answers;
  for (int i = 0; i < 9; ++i) {
    size_t free = 0, total = 0;
    answers += cudaMemGetInfo(&free, &total) == cudaSuccess ? '.' : 'x';
  }
  EXPECT_EQ(answers, ".x..x..x.");
  EXPECT_EQ(cudasim_fail("cudaMemGetInfo", 1, 600, -1), -1);
}

TEST_F(FaultTest, AMisspeltFunctionIsRefused) {
  EXPECT_EQ(cudasim_fail("cuMemCreat", 1, 2, 0), -1);
  EXPECT_EQ(cudasim_fail("cudaMallok", 1, 2, 0), -1);
  EXPECT_EQ(cudasim_fail("cudaMalloc", 0, 2, 0), -1);
  EXPECT_EQ(cudasim_fail("cudaMemcpyAsync", 1, 700, 0), 0);
}

TEST_F(FaultTest, AFailedUnmapChangesNothing) {
  Block block;
  ASSERT_EQ(cuMemsetD8(block.address, 4, 8), CUDA_SUCCESS);
  ASSERT_EQ(cudasim_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, 0), 0);
  EXPECT_EQ(cuMemUnmap(block.address, kHandle), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(block.Peek(), 4);
  EXPECT_EQ(cudasim_live_mappings(), 1);
}

TEST_F(FaultTest, WhatIsNotThereFailsByName) {
  EXPECT_EQ(cudaDestroySurfaceObject(0), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudasim_calls("cudaDestroySurfaceObject"), 1);
}

TEST_F(FaultTest, DriverFunctionsAreFoundByNameInTheirNewestVersion) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuMemGetInfo", &function, 12010,
                                             0, &result),
            cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemGetInfo));
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12010,
                                             0, &result),
            cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuMulticastCreate", &function,
                                             12010, 0, &result),
            cudaSuccess);
  EXPECT_NE(function, nullptr);
}

}  // namespace
}  // namespace cudasim
