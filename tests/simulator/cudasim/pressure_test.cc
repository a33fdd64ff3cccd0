// SPDX-License-Identifier: Apache-2.0
//
// What the surroundings do: errors that stay, memory that others take, copies
// that are slow or stuck, a host that cannot pin.

#include "tests/simulator/cudasim/pressure.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/simulator/cudasim/driver_entry.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

class PressureTest : public SimulatorTest {
 protected:
  static size_t FreeBytes() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  }
};

CUresult CreateOnHost(size_t bytes, CUmemGenericAllocationHandle* handle) {
  CUmemAllocationProp prop = DeviceProp();
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  prop.location.id = 0;
  return cuMemCreate(handle, bytes, &prop, 0);
}

TEST_F(PressureTest, ErrorsThatLeaveAContextUnusableStay) {
  for (const int error :
       {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911}) {
    SCOPED_TRACE(error);
    ASSERT_EQ(cudasim_fail("cudaMemGetInfo", 1, error, 0), 0);
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), error);
    // Another function, later, and the runtime's last error too.
    EXPECT_EQ(cudaDeviceSynchronize(), error);
    EXPECT_EQ(cudaGetLastError(), error);
    EXPECT_EQ(cudaGetLastError(), error);
    cudasim_clear_errors();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  for (const int error : {1, 2, 101, 304, 600, 701, 801, 999}) {
    SCOPED_TRACE(error);
    ASSERT_EQ(cudasim_fail("cudaMemGetInfo", 1, error, 0), 0);
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), error);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudasim_clear_errors();
  }
}

TEST_F(PressureTest, EveryFunctionCanBePlannedToFail) {
  // Written out where each is implemented; a name that is not known to Knows()
  // could never be planned.
  const char* const names[] = {
#define CUDASIM_FUNCTION(name) #name,
#include "tests/simulator/cudasim/runtime_functions.inc"
#undef CUDASIM_FUNCTION
      "cudaDeviceCanAccessPeer",  // its line was a comment once
  };
  for (const char* name : names) {
    EXPECT_EQ(cudasim_fail(name, 1, 999, 1), 0) << name;
  }
  cudasim_clear_faults();
}

TEST_F(PressureTest, AnotherProcessTakesMemoryAndGivesItBack) {
  const size_t free = FreeBytes();
  EXPECT_EQ(cudasim_take_memory(0, 100 * kHandle), 100 * kHandle);
  EXPECT_EQ(FreeBytes(), free - 100 * kHandle);
  // What is wanted now is the new sum, not more.
  EXPECT_EQ(cudasim_take_memory(0, 10 * kHandle), 10 * kHandle);
  EXPECT_EQ(FreeBytes(), free - 10 * kHandle);
  EXPECT_EQ(cudasim_take_memory(0, 0), 0u);
  EXPECT_EQ(FreeBytes(), free);
}

TEST_F(PressureTest, ItNeverTakesWhatIsInUse) {
  Block block(2);
  const size_t free = FreeBytes();
  EXPECT_EQ(cudasim_take_memory(0, uint64_t{1} << 40), free);
  EXPECT_EQ(FreeBytes(), 0u);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  EXPECT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 1), cudaErrorMemoryAllocation);
  // The block is untouched, and what it gives back is free for the program.
  EXPECT_EQ(cuMemsetD8(block.address, 3, block.bytes()), CUDA_SUCCESS);
  EXPECT_EQ(block.Peek(kHandle), 3);
  block.Unmap();
  EXPECT_EQ(FreeBytes(), 2 * kHandle);
  cudaGetLastError();
}

TEST_F(PressureTest, ItTakesItAtAChosenCall) {
  const size_t free = FreeBytes();
  ASSERT_EQ(cudasim_take_memory_at(0, free, "cuMemCreate", 2), 0);
  ASSERT_EQ(cudasim_take_memory_at(0, 0, "cuMemRelease", 1), 0);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle second = 0;
  EXPECT_EQ(cuMemCreate(&second, kHandle, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), free);
  EXPECT_EQ(cudasim_take_memory_at(0, 1, "cuMemCreat", 1), -1);
  EXPECT_EQ(cudasim_take_memory_at(3, 1, "cuMemCreate", 1), -1);
  EXPECT_EQ(cudasim_take_memory_at(0, 1, "cuMemCreate", 0), -1);
}

TEST_F(PressureTest, AHostThatCannotPin) {
  cudasim_limit_pinned(0);
  void* pointer = nullptr;
  EXPECT_EQ(cudaHostAlloc(&pointer, 4096, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMallocHost(&pointer, 4096), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuMemHostAlloc(&pointer, 4096, 0), CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<char> memory(8192);
  EXPECT_EQ(cudaHostRegister(memory.data(), memory.size(), 0),
            cudaErrorMemoryAllocation);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(CreateOnHost(kHandle, &handle), CUDA_ERROR_OUT_OF_MEMORY);
  // Pageable memory still works.
  Block block;
  EXPECT_EQ(cudaMemcpy(block.pointer(), memory.data(), memory.size(),
                       cudaMemcpyHostToDevice),
            cudaSuccess);
  cudaGetLastError();
}

TEST_F(PressureTest, AHostThatPinsOnlySoMuch) {
  cudasim_limit_pinned(2 * kHandle);
  void* pointer = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pointer, kHandle, 0), cudaSuccess);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(CreateOnHost(kHandle, &handle), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_pinned(), 2 * kHandle);
  std::vector<char> memory(4096);
  EXPECT_EQ(cudaHostRegister(memory.data(), 4096, 0),
            cudaErrorMemoryAllocation);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(cudaHostRegister(memory.data(), 4096, 0), cudaSuccess);
  ASSERT_EQ(cudaHostUnregister(memory.data()), cudaSuccess);
  ASSERT_EQ(cudaFreeHost(pointer), cudaSuccess);
  EXPECT_EQ(cudasim_pinned(), 0u);
  cudaGetLastError();
}

TEST_F(PressureTest, CopiesGetSlowerFromAChosenOneOn) {
  ASSERT_EQ(cudasim_apply_profile(
                0, R"({"pcie_up_gb_per_s": 1, "pcie_down_gb_per_s": 1})"),
            0);
  cudasim_set_capacity(0, uint64_t{1} << 30);
  cudasim_virtual_reset();
  Block block;
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 1000, 0), cudaSuccess);
  ASSERT_EQ(cudasim_slow_copies("up", 5, 1), 0);
  const auto copy = [&](cudaMemcpyKind kind) {
    const bool up = kind == cudaMemcpyHostToDevice;
    const int64_t start = cudasim_stream_virtual_ns(nullptr);
    EXPECT_EQ(
        cudaMemcpyAsync(up ? block.pointer() : pinned,
                        up ? pinned : block.pointer(), 1000, kind, nullptr),
        cudaSuccess);
    return cudasim_stream_virtual_ns(nullptr) - start;
  };
  EXPECT_EQ(copy(cudaMemcpyHostToDevice), 1000);
  EXPECT_EQ(copy(cudaMemcpyHostToDevice), 5000);
  EXPECT_EQ(copy(cudaMemcpyDeviceToHost), 1000);
  ASSERT_EQ(cudasim_slow_copies("up", 1, 0), 0);
  EXPECT_EQ(copy(cudaMemcpyHostToDevice), 1000);
  EXPECT_EQ(cudasim_slow_copies("sideways", 2, 0), -1);
  EXPECT_EQ(cudasim_slow_copies("up", 0, 0), -1);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
}

TEST_F(PressureTest, PageTablesTakeMemoryOfTheCard) {
  cudasim_keep_for_page_tables(16 << 20);
  Block block;
  const size_t free = FreeBytes();
  ASSERT_EQ(cudasim_take_memory(0, free - (15 << 20)), free - (15 << 20));
  EXPECT_EQ(Grant(block.address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cudasim_take_memory(0, free - (16 << 20)), free - (16 << 20));
  EXPECT_EQ(Grant(block.address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  ASSERT_EQ(cudasim_take_memory(0, free), free);
  cudasim_keep_for_page_tables(0);
  EXPECT_EQ(Grant(block.address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
}

TEST_F(PressureTest, AStuckCopyTakesItsTurnsOrASynchronisation) {
  cudasim_set_mode(1);
  Block block;
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 1000, 0), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  const auto queries = [&] {
    int count = 0;
    while (cudaStreamQuery(stream) == cudaErrorNotReady) ++count;
    return count;
  };
  const auto copy = [&] {
    ASSERT_EQ(cudaMemcpyAsync(block.pointer(), pinned, 1000,
                              cudaMemcpyHostToDevice, stream),
              cudaSuccess);
  };
  copy();
  EXPECT_LT(queries(), 5);
  ASSERT_EQ(cudasim_stick_copy(2, 400), 0);
  copy();
  EXPECT_LT(queries(), 5);  // the first one from now is not the one
  copy();
  EXPECT_GT(queries(), 100);  // queries and seeded steps share the turns
  ASSERT_EQ(cudasim_stick_copy(1, 1000000), 0);
  static_cast<char*>(pinned)[0] = 9;
  copy();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(block.Peek(), 9);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

}  // namespace
}  // namespace cudasim
