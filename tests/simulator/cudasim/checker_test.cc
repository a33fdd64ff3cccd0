// SPDX-License-Identifier: Apache-2.0
//
// Every kind of violation, planted, beside the correct program that is not
// reported. Each report must name its kind, the block, both operations and the
// missing edge.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>

#include "tests/simulator/cudasim/checker_fixture_test.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(CheckerTest, ThereIsNoKindWithoutAViolation) {
  EXPECT_EQ(cudasim_violation_kind(0, nullptr, 0), -1);
}

TEST_F(CheckerTest, Race) {
  Block block;
  Operator("aten::add_", block.address + 1024, one_, 1);
  Edge(one_, two_);
  Operator("aten::mul_", block.address + 1024, two_, 1);
  ExpectClean();
  Operator("aten::relu_", block.address + 1024, one_, 1);
  ExpectOne("race");
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("aten::relu_ on " + Name(one_) + " (operation 2) writes"),
            HasSubstr("+512 bytes) of handle 0x51"), HasSubstr("offset 1024"),
            HasSubstr("aten::mul_ on " + Name(two_) + " (operation 1) writes"),
            HasSubstr("missing edge: record an event on " + Name(two_) +
                      " after operation 1 and make " + Name(one_) +
                      " wait for it")));
}

TEST_F(CheckerTest, UseAfterFreeOfABlockHandedOutAgain) {
  Block block;
  Operator("aten::add", block.address, one_, 0);
  cudasim_block_freed(block.address, 512);
  Operator("aten::mul", block.address, one_, 1);  // same stream: fine
  ExpectClean();
  cudasim_block_freed(block.address, 512);
  Operator("aten::relu", block.address, two_, 1);
  ExpectOne("use-after-free");
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("aten::relu on " + Name(two_)),
            HasSubstr("aten::mul on " + Name(one_)),
            HasSubstr("freed and handed out again in between"),
            HasSubstr("missing edge: record an event on " + Name(one_))));
}

TEST_F(CheckerTest, UseAfterFreeSeenByTheFirstWriteOfAFreshBlock) {
  Block block;
  Operator("aten::add", block.address, one_, 0);
  Edge(one_, two_);
  Operator("aten::relu", block.address, two_, 2);
  ExpectClean();
  Operator("aten::mul", block.address, one_, 2);
  ExpectOne("use-after-free");
}

TEST_F(CheckerTest, UseBeforeCopyIn) {
  Block block;
  CopyIn(block, one_);
  Operator("aten::embedding", block.address + 4096, two_, 0);
  ExpectOne("use-before-copy-in");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("aten::embedding on " + Name(two_)),
                    HasSubstr("cudaMemcpyAsync on " + Name(one_)),
                    HasSubstr("offset 4096"), HasSubstr("missing edge")));
}

TEST_F(CheckerTest, UseAfterTheCopyInIsFine) {
  Block block;
  CopyIn(block, one_);
  Edge(one_, two_);
  Operator("aten::embedding", block.address + 4096, two_, 0);
  ExpectClean();
}

TEST_F(CheckerTest, UseAfterUnmap) {
  Block block;
  Operator("aten::add", block.address, one_, 0);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();
  block.Unmap();
  EXPECT_EQ(cudaMemsetAsync(block.pointer(), 1, 64, one_),
            cudaErrorIllegalAddress);
  ExpectOne("use-after-unmap");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaMemsetAsync on " + Name(one_)),
                    HasSubstr("of what was handle 0x51"),
                    HasSubstr("cuMemUnmap (call "), HasSubstr("missing edge")));
}

TEST_F(CheckerTest, AnOperatorThatUsesWhatIsUnmapped) {
  Block block;
  block.Unmap();
  Operator("aten::add", block.address, one_, 0);
  ExpectOne("use-after-unmap");
}

TEST_F(CheckerTest, MemoryThatWasNeverThere) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0), CUDA_SUCCESS);
  Operator("aten::add", address, one_, 0);
  ExpectOne("illegal-address");
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

TEST_F(CheckerTest, UnmapWhilePending) {
  Block block;
  CopyIn(block, one_);
  block.Unmap();
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("cuMemUnmap takes"), HasSubstr("of what was handle 0x51"),
            HasSubstr("cudaMemcpyAsync on " + Name(one_) + " (operation 1)"),
            HasSubstr("missing edge: synchronise " + Name(one_))));
}

TEST_F(CheckerTest, UnmapWhileAThreadComputes) {
  Block block;
  const cudasim_access access = {block.address, 512, 0};
  const long token = cudasim_hold_ranges("aten::add", &access, 1);
  std::thread([&] { block.Unmap(); }).join();
  cudasim_release_ranges(token);
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(Violation(0), HasSubstr("while aten::add is computing on it"));
}

TEST_F(CheckerTest, HoldsNestAndEndInAnyOrder) {
  Block block;
  const cudasim_access outer = {block.address, 512, 1};
  const cudasim_access inner = {block.address + 512, 512, 1};
  const long first = cudasim_hold_ranges("outer", &outer, 1);
  const long second = cudasim_hold_ranges("inner", &inner, 1);
  cudasim_release_ranges(first);
  cudasim_release_ranges(second);
  CopyIn(block, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();
}

TEST_F(CheckerTest, DoubleReleaseOfAHandle) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ExpectClean();
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  ExpectOne("double-release");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cuMemRelease (call 2) gives handle 0x51"),
                    HasSubstr("cuMemRelease (call 1)")));
}

TEST_F(CheckerTest, DoubleReleaseOfAMappedHandle) {
  Block block;  // released once already, the mapping keeps it
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, block.pointer()),
            CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ExpectClean();
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  ExpectOne("double-release");
}

TEST_F(CheckerTest, DoubleReleaseOfAMapping) {
  Block block;
  block.Unmap();
  EXPECT_EQ(cuMemUnmap(block.address, kHandle), CUDA_ERROR_INVALID_VALUE);
  ExpectOne("double-release");
  EXPECT_THAT(Violation(0), AllOf(HasSubstr("cuMemUnmap (call 2) takes"),
                                  HasSubstr("cuMemUnmap (call 1) had taken")));
}

TEST_F(CheckerTest, AMappingMayBeMadeAndTakenAgain) {
  Block block(2);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, block.pointer()),
            CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cuMemUnmap(block.address, kHandle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(block.address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ExpectClean();
}

TEST_F(CheckerTest, DoubleFreeOfAnAllocation) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  ExpectClean();
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  ExpectOne("double-release");
  EXPECT_THAT(Violation(0), HasSubstr("cudaFree (call 2) frees"));
}

TEST_F(CheckerTest, DoubleFreeOfHostMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaHostAlloc(&memory, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
  ExpectClean();
  EXPECT_NE(cudaFreeHost(memory), cudaSuccess);
  ExpectOne("double-release");
}

TEST_F(CheckerTest, MappingLeak) {
  EXPECT_EQ(cudasim_report_leaks(), 0);
  ExpectClean();
  Block block;
  EXPECT_EQ(cudasim_report_leaks(), 1);
  ExpectOne("mapping-leak");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("of handle 0x51"), HasSubstr("still mapped"),
                    HasSubstr("cuMemUnmap")));
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, block.pointer()),
            CUDA_SUCCESS);
  block.Unmap();
  EXPECT_EQ(cudasim_report_leaks(), 1);
  EXPECT_THAT(Violation(1), HasSubstr("still held"));
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(CheckerTest, HostFreeInFlight) {
  Block block;
  void* other = nullptr;
  ASSERT_EQ(cudaHostAlloc(&other, kHandle, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(other, block.pointer(), kHandle,
                            cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  EXPECT_EQ(cudaFreeHost(other), cudaSuccess);
  ExpectOne("host-free-in-flight");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaFreeHost takes"),
                    HasSubstr("of the pinned host range at"),
                    HasSubstr("cudaMemcpyAsync on " + Name(one_)),
                    HasSubstr("missing edge: synchronise " + Name(one_))));
}

TEST_F(CheckerTest, HostFreeAfterTheCopyIsFine) {
  Block block;
  void* other = nullptr;
  ASSERT_EQ(cudaHostAlloc(&other, kHandle, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(other, block.pointer(), kHandle,
                            cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(other), cudaSuccess);
  ExpectClean();
}

TEST_F(CheckerTest, HostWriteInFlight) {
  // Seed after seed until the copy was still queued at the write.
  for (uint64_t seed = 0; seed < 16; ++seed) {
    cudasim_set_seed(seed);
    Block block;
    CopyIn(block, one_);
    const bool queued = block.Peek() == 0;
    static_cast<char*>(pinned_)[100] ^= 1;
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    if (queued) break;
  }
  ExpectOne("host-write-in-flight");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaMemcpyAsync on " + Name(one_)),
                    HasSubstr("missing edge: synchronise " + Name(one_))));
}

}  // namespace
}  // namespace cudasim
