// SPDX-License-Identifier: Apache-2.0
//
// Launches that no operator shows: kernels of modules, whose pointers are
// checked where the program asked for it, and which fail closed where it did
// not.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cubin_builder.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class RawLaunchTest : public TwoStreamsTest {
 protected:
  void SetUp() override {
    TwoStreamsTest::SetUp();
    image_ = CubinBuilder().Kernel("tests_raw", {8, 4, 8}).Build();
    ASSERT_EQ(cuModuleLoadData(&module_, image_.data()), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&function_, module_, "tests_raw"),
              CUDA_SUCCESS);
    cudasim_check_raw_launches("all");
  }
  void TearDown() override {
    cudasim_check_raw_launches(nullptr);
    EXPECT_EQ(cuModuleUnload(module_), CUDA_SUCCESS);
    TwoStreamsTest::TearDown();
  }

  CUresult Launch(uint64_t first, uint64_t second, cudaStream_t stream) {
    int count = 7;
    void* arguments[] = {&first, &count, &second};
    return cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream, arguments,
                          nullptr);
  }
  void ExpectOne(const char* kind) {
    ASSERT_EQ(cudasim_violation_count(), 1) << Violation(0) << Violation(1);
    EXPECT_THAT(Violation(0), StartsWith(std::string(kind) + ": "));
  }
  void ExpectClean() {
    EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  }

  std::string image_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

TEST_F(RawLaunchTest, PointersToMappedMemoryPassAndTheLaunchIsCounted) {
  Block block;
  EXPECT_EQ(Launch(block.address, block.address + kHandle - 1, one_),
            CUDA_SUCCESS);
  EXPECT_EQ(Launch(block.address, reinterpret_cast<uint64_t>(pinned_), one_),
            CUDA_SUCCESS);
  EXPECT_EQ(Launch(0, 12345, one_), CUDA_SUCCESS);  // no addresses
  EXPECT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(cudasim_launches_checked(), 3);
  EXPECT_EQ(cudasim_launches_with_twin(), 0);
  EXPECT_EQ(cudasim_launches_without_twin(), 0);
  char name[32] = "";
  EXPECT_GT(cudasim_last_checked_launch(name, sizeof(name)), 0);
  EXPECT_STREQ(name, "tests_raw");
  ExpectClean();
}

TEST_F(RawLaunchTest, WhatNobodyAskedForFailsClosed) {
  Block block;
  for (const char* names : {"", "others;tests_rawer"}) {
    cudasim_check_raw_launches(names);
    EXPECT_EQ(Launch(block.address, 0, one_), CUDA_ERROR_NOT_SUPPORTED);
    cudasim_clear_errors();
  }
  EXPECT_EQ(cudasim_launches_without_twin(), 2);
  EXPECT_EQ(cudasim_launches_checked(), 0);
  cudasim_check_raw_launches("others;ts_ra");
  EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_launches_checked(), 1);
}

TEST_F(RawLaunchTest, AnImageThatSaysNothingCannotBeChecked) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "no cubin"), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "tests_raw"), CUDA_SUCCESS);
  EXPECT_NE(function, function_);
  EXPECT_EQ(
      cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, one_, nullptr, nullptr),
      CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cudasim_launches_without_twin(), 1);
  cudasim_clear_errors();
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(RawLaunchTest, APointerToUnmappedMemoryIsAnIllegalAddress) {
  for (const int mode : {0, 1}) {
    cudasim_set_mode(mode);
    Block block;
    block.Unmap();
    // As on a device, the launch is accepted; the next call has the error.
    EXPECT_EQ(Launch(0, block.address + 4096, one_), CUDA_SUCCESS);
    ExpectOne("use-after-unmap");
    EXPECT_THAT(Violation(0),
                AllOf(HasSubstr("kernel tests_raw on stream 0x57"),
                      HasSubstr("has as argument 2 the address of [0x")));
    EXPECT_EQ(cudaStreamSynchronize(one_), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    cudasim_clear_errors();
    cudasim_clear_violations();
  }
}

TEST_F(RawLaunchTest, MemoryWithoutAccessAndViewsAreIllegalToo) {
  CUdeviceptr reserved = 0;
  ASSERT_EQ(cuMemAddressReserve(&reserved, kHandle, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(Launch(reserved, 0, one_), CUDA_SUCCESS);
  ExpectOne("illegal-address");
  EXPECT_EQ(cudaStreamSynchronize(one_), cudaErrorIllegalAddress);
  cudasim_clear_errors();
  cudasim_clear_violations();
  EXPECT_EQ(cuMemAddressFree(reserved, kHandle), CUDA_SUCCESS);

  Block block;
  EXPECT_EQ(Launch(block.address + cudasim_delta(), 0, one_), CUDA_SUCCESS);
  ExpectOne("illegal-address");
  EXPECT_THAT(Violation(0), HasSubstr("host's view"));
  cudasim_clear_errors();
}

TEST_F(RawLaunchTest, FreedMemoryOfCudaMallocAndOfAPool) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(Launch(reinterpret_cast<uint64_t>(memory), 0, one_), CUDA_SUCCESS);
  ExpectOne("use-after-unmap");
  cudasim_clear_errors();
  cudasim_clear_violations();

  ASSERT_EQ(cudaMallocAsync(&memory, 64, one_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(memory, one_), cudaSuccess);
  EXPECT_EQ(Launch(reinterpret_cast<uint64_t>(memory), 0, one_), CUDA_SUCCESS);
  ExpectOne("use-after-free");
  cudasim_clear_errors();
}

TEST_F(RawLaunchTest, UnmappingUnderAPendingLaunchIsNamed) {
  Block block;
  EXPECT_EQ(Launch(block.address + 64, 0, one_), CUDA_SUCCESS);
  block.Unmap();
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(Violation(0), HasSubstr("kernel tests_raw on stream 0x57"));
}

TEST_F(RawLaunchTest, AKernelThatRunsAfterItsMemoryWentBreaksTheDevice) {
  // Seed after seed until the kernel was still queued at the unmapping.
  cudaError_t error = cudaSuccess;
  for (uint64_t seed = 0; seed < 16 && error == cudaSuccess; ++seed) {
    cudasim_set_seed(seed);
    Block block;
    EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
    block.Unmap();
    error = cudaStreamSynchronize(one_);
    cudasim_clear_errors();
  }
  EXPECT_EQ(error, cudaErrorIllegalAddress);
  EXPECT_THAT(Violation(cudasim_violation_count() - 1),
              AllOf(StartsWith("use-after-unmap: kernel tests_raw on stream"),
                    HasSubstr(" (when it ran) has as argument 0")));
}

TEST_F(RawLaunchTest, UnmappingAfterAnEdgeIsRight) {
  Block block;
  EXPECT_EQ(Launch(block.address + 64, 0, one_), CUDA_SUCCESS);
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  block.Unmap();
  ExpectClean();
}

TEST_F(RawLaunchTest, PinnedMemoryFreedUnderAPendingLaunch) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4096, 0), cudaSuccess);
  EXPECT_EQ(Launch(0, reinterpret_cast<uint64_t>(pinned) + 8, one_),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  ExpectOne("host-free-in-flight");
}

TEST_F(RawLaunchTest, ALaunchBeforeTheBytesHaveArrived) {
  Block block;
  CopyIn(block, one_);
  EXPECT_EQ(Launch(block.address, 0, two_), CUDA_SUCCESS);
  ExpectOne("use-before-copy-in");
  cudasim_clear_violations();
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(Launch(block.address, 0, two_), CUDA_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  ExpectClean();
}

TEST_F(RawLaunchTest, ABlockFreedAndHandedOutUnderALaunch) {
  Block block;
  EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
  cudasim_block_freed(block.address, 512);
  const cudasim_access access = {block.address, 512, 2};
  cudasim_note_access(two_, "aten::empty", &access, 1);
  ExpectOne("use-after-free");
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

void AddTwin(void** arguments, const unsigned*, const unsigned*) {
  const CUdeviceptr to = *static_cast<CUdeviceptr*>(arguments[0]);
  auto* bytes =
      static_cast<char*>(cudasim_host_view(reinterpret_cast<const void*>(to)));
  *bytes = static_cast<char>(*bytes + *static_cast<int*>(arguments[1]));
  const cudasim_access access = {to, 1, 1};
  cudasim_note_access(cudasim_current_stream(), "tests_twin", &access, 1);
}

TEST_F(RawLaunchTest, ATwinRunsAfterTheCheckWhetherAskedForOrNot) {
  const std::string image =
      CubinBuilder().Kernel("tests_twin", {8, 4, 8}).Build();
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function_, module, "tests_twin"),
            CUDA_SUCCESS);
  cudasim_register_twin("tests_twin", AddTwin);
  for (const char* names : {"all", ""}) {
    cudasim_check_raw_launches(names);
    Block block;
    EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
    EXPECT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    EXPECT_EQ(block.Peek(), 7);
    ExpectClean();
    // An argument that the twin does not look at.
    Block gone;
    gone.Unmap();
    EXPECT_EQ(Launch(block.address, gone.address, one_), CUDA_SUCCESS);
    ExpectOne("use-after-unmap");
    EXPECT_EQ(cudaStreamSynchronize(one_), cudaErrorIllegalAddress);
    cudasim_clear_errors();
    EXPECT_EQ(block.Peek(), 7);
    cudasim_clear_violations();
    // The twin has computed: what goes now is missed by nobody.
    Block other;
    EXPECT_EQ(Launch(block.address, other.address, one_), CUDA_SUCCESS);
    other.Unmap();
    ExpectOne("unmap-while-pending");
    EXPECT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    cudasim_clear_violations();
  }
  EXPECT_EQ(cudasim_launches_checked(), 0);
  EXPECT_EQ(cudasim_launches_with_twin(), 6);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(RawLaunchTest, ArgumentsInOneBuffer) {
  Block block;
  struct {
    CUdeviceptr first;
    int count;
    CUdeviceptr second;
  } packed = {block.address, 7, block.address};
  size_t bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed,
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  const auto launch = [&] {
    return cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, one_, nullptr,
                          extra);
  };
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();
  block.Unmap();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("argument 0"));
}

TEST_F(RawLaunchTest, EveryReplayOfACapturedLaunchIsChecked) {
  Block block;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(one_, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
  ASSERT_EQ(cudaStreamEndCapture(one_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();

  ASSERT_EQ(cudaGraphLaunch(exec, one_), cudaSuccess);
  block.Unmap();
  ASSERT_GE(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), AllOf(StartsWith("unmap-while-pending: "),
                                  HasSubstr("tests_raw in a graph")));
  (void)cudaDeviceSynchronize();
  cudasim_clear_errors();
  cudasim_clear_violations();
  EXPECT_EQ(cudaGraphLaunch(exec, one_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(one_), cudaErrorIllegalAddress);
  ExpectOne("use-after-unmap");
  cudasim_clear_errors();
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(RawLaunchTest, AKernelThatTheImageDoesNotHaveIsNotFound) {
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, module_, "tests_ra"),
            CUDA_ERROR_NOT_FOUND);
}

TEST_F(RawLaunchTest, TheFirstLaunchTakesMemoryForTheCode) {
  Block block;
  cudasim_keep_for_code(2 << 20);
  cudasim_take_memory(0, cudasim_capacity(0));
  EXPECT_EQ(Launch(block.address, 0, one_), CUDA_ERROR_OUT_OF_MEMORY);
  cudasim_take_memory(0, 0);
  EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
  cudasim_take_memory(0, cudasim_capacity(0));
  EXPECT_EQ(Launch(block.address, 0, one_), CUDA_SUCCESS);
  cudasim_take_memory(0, 0);
  cudasim_keep_for_code(0);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();
}

TEST_F(RawLaunchTest, UnderWsl2MemoryOfTheHostIsOutOfReach) {
  ASSERT_EQ(cudasim_set_card(0, "wsl2"), 0);
  Block block;
  EXPECT_EQ(Launch(block.address, reinterpret_cast<uint64_t>(pinned_), one_),
            CUDA_SUCCESS);
  ExpectOne("illegal-address");
  EXPECT_THAT(Violation(0), HasSubstr("cannot use memory of the host"));
  EXPECT_EQ(cudaStreamSynchronize(one_), cudaErrorIllegalAddress);
  cudasim_clear_errors();
  cudasim_clear_violations();
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
}

}  // namespace
}  // namespace cudasim
