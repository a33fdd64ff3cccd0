// SPDX-License-Identifier: Apache-2.0
//
// Phantom memory: everything the driver does and refuses, and no bytes.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::HasSubstr;

// Pages this process holds, in bytes.
uint64_t Resident() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

long Mappings() {
  std::ifstream file("/proc/self/maps");
  long lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

class PhantomTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    ASSERT_EQ(cudasim_set_phantom(1), 0);
    cudasim_set_capacity(0, uint64_t{96} << 30);
  }
  void TearDown() override {
    ASSERT_EQ(cudasim_set_phantom(0), 0);
    SimulatorTest::TearDown();
  }
};

TEST_F(PhantomTest, ThousandsOfMappingsTakeNoneOfTheHosts) {
  const long before = Mappings();
  const uint64_t resident = Resident();
  constexpr int kHandles = 20000;  // 39 GiB
  constexpr size_t kBytes = kHandles * kHandle;
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kBytes, 0, 0, 0), CUDA_SUCCESS);
  // Backwards: pages in a row of one file would be one mapping of the kernel's.
  for (int i = kHandles - 1; i >= 0; --i) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = DeviceProp();
    ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address + i * kHandle, kHandle, 0, handle, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
  ASSERT_EQ(Grant(address, kBytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), kBytes);
  EXPECT_EQ(cudaMemset(reinterpret_cast<void*>(address), 7, kBytes),
            cudaSuccess);
  // Not one more per handle; a sanitizer makes dozens for itself.
  EXPECT_LE(Mappings(), before + 200);
  EXPECT_LT(Resident() - resident, uint64_t{64} << 20);
  EXPECT_EQ(cuMemUnmap(address, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, kBytes), CUDA_SUCCESS);
}

TEST_F(PhantomTest, CapacityIsThatOfADevice) {
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, size_t{90} << 30), cudaSuccess);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, size_t{10} << 30), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), 0u);
}

TEST_F(PhantomTest, SmallCopiesToTheHostGiveZerosLargeOnesNothing) {
  for (const int async : {0, 1}) {
    cudasim_set_mode(async);
    Block block(1);
    std::vector<char> host(8192, 'x');
    ASSERT_EQ(
        cudaMemcpy(block.pointer(), host.data(), 8192, cudaMemcpyHostToDevice),
        cudaSuccess);
    ASSERT_EQ(
        cudaMemcpy(host.data(), block.pointer(), 4096, cudaMemcpyDeviceToHost),
        cudaSuccess);
    EXPECT_EQ(host[0], 0);
    EXPECT_EQ(host[4095], 0);
    EXPECT_EQ(host[4096], 'x');
    host[0] = 'y';
    ASSERT_EQ(
        cudaMemcpy(host.data(), block.pointer(), 4097, cudaMemcpyDeviceToHost),
        cudaSuccess);
    EXPECT_EQ(host[0], 'y');
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST_F(PhantomTest, PinnedMemoryTakesNoPages) {
  const uint64_t resident = Resident();
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, size_t{64} << 30), cudaSuccess);
  Block block(512);
  EXPECT_EQ(cudaMemcpyAsync(pinned, block.pointer(), block.bytes(),
                            cudaMemcpyDeviceToHost, nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(block.pointer(), pinned, block.bytes(),
                            cudaMemcpyHostToDevice, nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(Resident() - resident, uint64_t{64} << 20);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(PhantomTest, AccessIsCheckedAsAlways) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0), CUDA_SUCCESS);
  char byte = 0;
  EXPECT_EQ(cudaMemcpy(&byte, reinterpret_cast<void*>(address), 1,
                       cudaMemcpyDeviceToHost),
            cudaErrorIllegalAddress);
  EXPECT_THAT(Violation(0), HasSubstr("reserved but not mapped"));
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

TEST_F(PhantomTest, TheCheckerSeesPendingAccesses) {
  cudasim_set_mode(1);
  {
    Block block;
    ASSERT_EQ(cudaMemsetAsync(block.pointer(), 1, kHandle, nullptr),
              cudaSuccess);
    block.Unmap();
  }
  EXPECT_THAT(Violation(0), HasSubstr("nothing proves that it has finished"));
}

TEST_F(PhantomTest, AHostViewIsAnErrorByName) {
  Block block;
  EXPECT_EQ(cudasim_host_view(block.pointer()), nullptr);
  EXPECT_EQ(cudasim_refused_calls(), 1);
  char names[200] = "";
  cudasim_refused_names(names, sizeof(names));
  EXPECT_THAT(names, HasSubstr("the host's view of phantom memory"));
  int here = 0;
  EXPECT_EQ(cudasim_host_view(&here), &here);
}

TEST_F(PhantomTest, ModeStaysWhileMemoryIsAlive) {
  Block block;
  EXPECT_EQ(cudasim_set_phantom(0), -1);
  EXPECT_EQ(cudasim_is_phantom(), 1);
}

}  // namespace
}  // namespace cudasim
