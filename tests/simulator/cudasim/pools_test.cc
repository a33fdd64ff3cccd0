// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory: reuse, what it must wait for, attributes, trimming,
// access, and the mistakes it catches.

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

constexpr uint64_t kChunk = uint64_t{32} << 20;

class PoolsTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    cudasim_set_capacity(1, uint64_t{1} << 30);
    ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool_, 0), cudaSuccess);
    for (cudaStream_t* each : {&one_, &two_}) {
      ASSERT_EQ(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking),
                cudaSuccess);
    }
  }
  void TearDown() override {
    cudasim_clear_errors();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemPoolTrimTo(pool_, 0), cudaSuccess);
    for (cudaStream_t each : {one_, two_}) {
      EXPECT_EQ(cudaStreamDestroy(each), cudaSuccess);
    }
    SimulatorTest::TearDown();
    EXPECT_EQ(cudasim_used(0), 0u);
  }
  uint64_t Attribute(cudaMemPoolAttr attribute) const {
    uint64_t value = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool_, attribute, &value), cudaSuccess);
    return value;
  }
  static void* Allocate(size_t bytes, cudaStream_t stream) {
    void* pointer = nullptr;
    EXPECT_EQ(cudaMallocAsync(&pointer, bytes, stream), cudaSuccess);
    return pointer;
  }

  cudaMemPool_t pool_ = nullptr;
  cudaStream_t one_ = nullptr;
  cudaStream_t two_ = nullptr;
};

TEST_F(PoolsTest, BlocksAreCutFromChunksAndJoinedAgain) {
  void* a = Allocate(100, one_);
  void* b = Allocate(1000, one_);
  EXPECT_EQ(static_cast<char*>(b) - static_cast<char*>(a), 512);
  EXPECT_EQ(cudasim_used(0), kChunk);
  EXPECT_EQ(Attribute(cudaMemPoolAttrUsedMemCurrent), 512u + 1024u);
  EXPECT_EQ(Attribute(cudaMemPoolAttrReservedMemCurrent), kChunk);
  ASSERT_EQ(cudaMemsetAsync(a, 3, 100, one_), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(b, 4, 1000, one_), cudaSuccess);
  char seen = 0;
  ASSERT_EQ(cudaMemcpy(&seen, b, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(seen, 4);
  CUdeviceptr base = 0;
  size_t size = 0;
  ASSERT_EQ(
      cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(b) + 7),
      CUDA_SUCCESS);
  EXPECT_EQ(base, reinterpret_cast<CUdeviceptr>(b));
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(cudaFreeAsync(a, one_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(b, one_), cudaSuccess);
  EXPECT_EQ(Attribute(cudaMemPoolAttrUsedMemCurrent), 0u);
  EXPECT_EQ(Attribute(cudaMemPoolAttrUsedMemHigh), 512u + 1024u);
  // One block again: it takes what fills the chunk.
  void* whole = Allocate(kChunk, one_);
  EXPECT_EQ(whole, a);
  EXPECT_EQ(cudaFree(whole), cudaSuccess);
  // More than a chunk.
  void* large = Allocate(kChunk + 1, one_);
  EXPECT_EQ(Attribute(cudaMemPoolAttrReservedMemCurrent), 2 * kChunk + kHandle);
  EXPECT_EQ(cudaFreeAsync(large, one_), cudaSuccess);
}

TEST_F(PoolsTest, WhatIsRefused) {
  void* pointer = Allocate(0, one_);
  EXPECT_EQ(pointer, nullptr);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAllocAsync(&address, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  pointer = Allocate(4096, one_);
  EXPECT_EQ(cudaFreeAsync(static_cast<char*>(pointer) + 512, one_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(nullptr, one_), cudaErrorInvalidValue);
  address = reinterpret_cast<CUdeviceptr>(pointer);
  EXPECT_EQ(cuMemUnmap(address, kChunk), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Grant(address, kChunk, CU_MEM_ACCESS_FLAGS_PROT_NONE),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(address, kChunk), CUDA_ERROR_INVALID_VALUE);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, pointer), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(pointer, one_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pointer, one_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPoolDestroy(pool_), cudaErrorInvalidValue);
  uint64_t value = 1;
  EXPECT_EQ(
      cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &value),
      cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &value),
            cudaErrorInvalidValue);
  cudasim_clear_errors();
}

TEST_F(PoolsTest, FreedMemoryIsUsableByWorkAskedForBefore) {
  cudasim_set_mode(1);
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 4096), cudaSuccess);
  void* block = Allocate(4096, one_);
  ASSERT_EQ(cudaMemsetAsync(block, 7, 4096, one_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned, block, 4096, cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  // At once for the same stream, whatever has run.
  void* again = Allocate(4096, one_);
  EXPECT_EQ(again, block);
  ASSERT_EQ(cudaMemsetAsync(again, 8, 4096, one_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(again, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(static_cast<char*>(pinned)[4095], 7);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
}

TEST_F(PoolsTest, AnotherStreamWaitsForTheFreeOfWhatItReuses) {
  cudasim_set_mode(1);
  for (const int dependencies : {1, 0}) {
    int allowed = dependencies;
    ASSERT_EQ(cudaMemPoolSetAttribute(
                  pool_, cudaMemPoolReuseAllowInternalDependencies, &allowed),
              cudaSuccess);
    int no = 0;
    ASSERT_EQ(
        cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowOpportunistic, &no),
        cudaSuccess);
    void* block = Allocate(kChunk, one_);
    ASSERT_EQ(cudaMemsetAsync(block, 1, kChunk, one_), cudaSuccess);
    ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
    void* other = Allocate(kChunk, two_);
    EXPECT_EQ(other == block, dependencies == 1);
    ASSERT_EQ(cudaMemsetAsync(other, 2, kChunk, two_), cudaSuccess);
    ASSERT_EQ(cudaFreeAsync(other, two_), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  }
}

TEST_F(PoolsTest, AFreeThatNothingOrdersWithTheUseIsAViolation) {
  cudasim_set_mode(1);
  void* block = Allocate(4096, one_);
  cudaEvent_t ready = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(ready, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two_, ready, 0), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(block, 1, 4096, two_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_NE(Violation(0).find("cudaFreeAsync"), std::string::npos)
      << Violation(0);
  // And the use after it.
  cudasim_clear_violations();
  ASSERT_EQ(cudaMemsetAsync(block, 2, 4096, one_), cudaErrorIllegalAddress);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_EQ(Violation(0).rfind("use-after-free", 0), 0u) << Violation(0);
  cudasim_clear_errors();
  EXPECT_EQ(cudaEventDestroy(ready), cudaSuccess);
}

TEST_F(PoolsTest, ABlockEndsWhereItEnds) {
  void* block = Allocate(512, one_);
  void* next = Allocate(512, one_);
  EXPECT_EQ(cudaMemsetAsync(block, 1, 513, one_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudasim_violation_count(), 1);
  cudasim_clear_errors();
  EXPECT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(next, one_), cudaSuccess);
}

TEST_F(PoolsTest, SynchronisationGivesBackWhatExceedsTheThreshold) {
  void* block = Allocate(100, one_);
  ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), kChunk);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), 0u);

  uint64_t threshold = ~uint64_t{0};
  ASSERT_EQ(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold,
                                    &threshold),
            cudaSuccess);
  block = Allocate(100, one_);
  ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), kChunk);
  ASSERT_EQ(cudaMemPoolTrimTo(pool_, kChunk), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), kChunk);
  // Another allocation that would fail gets it.
  cudasim_set_capacity(0, kChunk);
  void* plain = nullptr;
  ASSERT_EQ(cudaMalloc(&plain, kChunk), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&block, 100, one_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(plain), cudaSuccess);
  // Less than a chunk, where there is no more.
  cudasim_set_capacity(0, kHandle);
  block = Allocate(100, one_);
  EXPECT_EQ(cudasim_used(0), kHandle);
  EXPECT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
}

TEST_F(PoolsTest, WhatHasNotRunIsNotTrimmed) {
  cudasim_set_mode(1);
  cudasim_set_seed(0);
  void* block = Allocate(100, one_);
  ASSERT_EQ(cudaMemsetAsync(block, 1, 100, one_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  // Steps may run meanwhile; what they left is not taken away under them.
  ASSERT_EQ(cudaMemPoolTrimTo(pool_, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
}

TEST_F(PoolsTest, PoolsOfOnesOwn) {
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = 0;
  cudaMemPool_t own = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&own, &props), cudaSuccess);
  EXPECT_NE(own, pool_);
  void* block = nullptr;
  ASSERT_EQ(cudaMallocFromPoolAsync(&block, 4096, own, one_), cudaSuccess);
  EXPECT_EQ(Attribute(cudaMemPoolAttrUsedMemCurrent), 0u);
  ASSERT_EQ(cudaDeviceSetMemPool(0, own), cudaSuccess);
  cudaMemPool_t current = nullptr;
  ASSERT_EQ(cudaDeviceGetMemPool(&current, 0), cudaSuccess);
  EXPECT_EQ(current, own);
  EXPECT_EQ(cudaDeviceSetMemPool(1, own), cudaErrorInvalidValue);
  // It lasts as long as its last block.
  ASSERT_EQ(cudaMemPoolDestroy(own), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(own, 0), cudaErrorInvalidValue);
  ASSERT_EQ(cudaDeviceGetMemPool(&current, 0), cudaSuccess);
  EXPECT_EQ(current, pool_);
  ASSERT_EQ(cudaMemsetAsync(block, 1, 4096, one_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), 0u);
  props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  EXPECT_EQ(cudaMemPoolCreate(&own, &props), cudaErrorNotSupported);
}

TEST_F(PoolsTest, AnotherDeviceNeedsAccessOfThePool) {
  void* block = Allocate(4096, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = 1;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(cudaMemset(block, 1, 16), cudaErrorIllegalAddress);
  cudasim_clear_errors();
  cudasim_clear_violations();
  ASSERT_EQ(cudaMemPoolSetAccess(pool_, &access, 1), cudaSuccess);
  cudaMemAccessFlags flags = {};
  ASSERT_EQ(cudaMemPoolGetAccess(&flags, pool_, &access.location), cudaSuccess);
  EXPECT_EQ(flags, cudaMemAccessFlagsProtReadWrite);
  EXPECT_EQ(cudaMemset(block, 1, 16), cudaSuccess);
  // Chunks of later have it too.
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  void* large = Allocate(kChunk, one_);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMemset(large, 1, 16), cudaSuccess);
  access.flags = cudaMemAccessFlagsProtNone;
  ASSERT_EQ(cudaMemPoolSetAccess(pool_, &access, 1), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(large, one_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(block, one_), cudaSuccess);
}

}  // namespace
}  // namespace cudasim
