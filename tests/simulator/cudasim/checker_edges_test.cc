// SPDX-License-Identifier: Apache-2.0
//
// Edges that the checker follows past one address and one thread: a handle
// mapped twice, and host threads with clocks of their own.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/simulator/cudasim/checker_fixture_test.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::HasSubstr;

// --- The same handle at two addresses ----------------------------------------

class TwoMappings {
 public:
  TwoMappings() {
    EXPECT_EQ(cuMemAddressReserve(&base_, 2 * kHandle, 0, 0, 0), CUDA_SUCCESS);
    const CUmemAllocationProp prop = DeviceProp();
    EXPECT_EQ(cuMemCreate(&handle_, kHandle, &prop, 0), CUDA_SUCCESS);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(cuMemMap(at(i), kHandle, 0, handle_, 0), CUDA_SUCCESS);
      EXPECT_EQ(Grant(at(i), kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                CUDA_SUCCESS);
    }
  }
  ~TwoMappings() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 2; ++i) {
      if (mapped_[i]) Unmap(i);
    }
    EXPECT_EQ(cuMemRelease(handle_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(base_, 2 * kHandle), CUDA_SUCCESS);
  }
  TwoMappings(const TwoMappings&) = delete;
  TwoMappings& operator=(const TwoMappings&) = delete;
  CUdeviceptr at(int i) const { return base_ + i * kHandle; }
  void Unmap(int i) {
    EXPECT_EQ(cuMemUnmap(at(i), kHandle), CUDA_SUCCESS);
    mapped_[i] = false;
  }

 private:
  CUdeviceptr base_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  bool mapped_[2] = {true, true};
};

TEST_F(CheckerTest, OneHandleAtTwoAddressesIsTheSameBytes) {
  TwoMappings both;
  Operator("aten::add_", both.at(0), one_, 1);
  Operator("aten::mul", both.at(1) + 512, two_, 0);  // other bytes
  ExpectClean();
  Operator("aten::mul", both.at(1), two_, 0);
  ExpectOne("race");
}

TEST_F(CheckerTest, UnmappingOneAddressNeedsOnlyItsOwnUsersDone) {
  TwoMappings both;
  Operator("aten::add_", both.at(0), one_, 1);
  both.Unmap(1);
  ExpectClean();
}

TEST_F(CheckerTest, AWriteThroughTheOtherAddressHidesNoPendingUse) {
  TwoMappings both;
  Operator("aten::add_", both.at(0), one_, 1);
  Operator("aten::mul_", both.at(1), one_, 1);
  ExpectClean();
  both.Unmap(0);
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(Violation(0), HasSubstr("aten::add_"));
}

// --- Host threads ------------------------------------------------------------

TEST_F(CheckerTest, WhatOneThreadObservedCountsForAllByDefault) {
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  }).join();
  block.Unmap();
  ExpectClean();
}

TEST_F(CheckerTest, WithThreadClocksAnEdgeIsNeeded) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  }).join();
  block.Unmap();
  ExpectOne("unmap-while-pending");
}

TEST_F(CheckerTest, WithThreadClocksATokenIsAnEdge) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    cudasim_thread_release(7);
  }).join();
  cudasim_thread_acquire(8);  // another token tells nothing
  Operator("aten::add", block.address, two_, 0);
  ExpectOne("use-before-copy-in");
  cudasim_clear_violations();
  cudasim_thread_acquire(7);
  Operator("aten::add", block.address, two_, 0);
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  block.Unmap();
  ExpectClean();
}

TEST_F(CheckerTest, WithThreadClocksAnEventCarriesWhatItsThreadKnew) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, two_), cudaSuccess);
  }).join();
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  block.Unmap();
  ExpectClean();
}

TEST_F(CheckerTest, WithThreadClocksANewThreadKnowsWhatWasKnown) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  std::thread([&] { block.Unmap(); }).join();
  ExpectClean();
}

}  // namespace
}  // namespace cudasim
