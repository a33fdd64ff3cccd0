// SPDX-License-Identifier: Apache-2.0
//
// A process that starts with phantom memory: addresses for eight devices of a
// real size, and memory of the host that keeps its bytes without a second half
// of the arena.

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

constexpr uint64_t kTiB = uint64_t{1} << 40;

using AddressesTest = SimulatorTest;

// May the host read there? The kernel says so when it is asked to copy from
// there, whatever the byte is.
bool IsReadable(const void* address) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe(ends), 0);
  const bool copied = write(ends[1], address, 1) == 1;
  EXPECT_TRUE(copied || errno == EFAULT) << std::strerror(errno);
  close(ends[0]);
  close(ends[1]);
  return copied;
}

TEST_F(AddressesTest, EightDevicesHaveNineTebibytesEach) {
  CUdeviceptr starts[8] = {};
  for (CUdeviceptr& start : starts) {
    EXPECT_EQ(cuMemAddressReserve(&start, 9 * kTiB, 0, 0, 0), CUDA_SUCCESS);
  }
  CUdeviceptr more = 0;
  EXPECT_EQ(cuMemAddressReserve(&more, 9 * kTiB, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  // The last of all those addresses can be used.
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  const CUdeviceptr last = starts[7] + 9 * kTiB - kHandle;
  ASSERT_EQ(cuMemMap(last, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(Grant(last, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaMemset(reinterpret_cast<void*>(last), 1, kHandle), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0);
  EXPECT_EQ(cuMemUnmap(last, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  for (CUdeviceptr start : starts) {
    EXPECT_EQ(cuMemAddressFree(start, 9 * kTiB), CUDA_SUCCESS);
  }
}

TEST_F(AddressesTest, MemoryOfTheHostIsSeenByWhoWasGrantedIt) {
  CUmemAllocationProp prop = DeviceProp();
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  const auto host_may = [&](CUmemAccess_flags flags) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_HOST;
    access.flags = flags;
    EXPECT_EQ(cuMemSetAccess(address, kHandle, &access, 1), CUDA_SUCCESS);
  };
  void* const pointer = reinterpret_cast<void*>(address);
  EXPECT_FALSE(IsReadable(pointer));
  ASSERT_EQ(Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  ASSERT_EQ(cudaMemset(pointer, 7, kHandle), cudaSuccess);
  host_may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_TRUE(IsReadable(pointer));
  // One's right does not end with the other's.
  host_may(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  char found = 0;
  EXPECT_EQ(cudaMemcpy(&found, pointer, 1, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(found, 7);
  host_may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_NONE),
            CUDA_SUCCESS);
  EXPECT_TRUE(IsReadable(pointer));
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  EXPECT_FALSE(IsReadable(pointer));
  ASSERT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

TEST_F(AddressesTest, BytesHaveNoPlaceInSuchAProcess) {
  EXPECT_EQ(cudasim_set_phantom(0), -1);
  EXPECT_EQ(cudasim_is_phantom(), 1);
}

}  // namespace
}  // namespace cudasim
