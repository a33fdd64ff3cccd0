// SPDX-License-Identifier: Apache-2.0
//
// What the driver refuses, the simulated one refuses; and what it hands out it
// counts.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::HasSubstr;

class MemoryTest : public SimulatorTest {};

CUmemGenericAllocationHandle NewHandle(size_t bytes = kHandle) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  EXPECT_EQ(cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
  return handle;
}

CUdeviceptr NewReservation(size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
  return address;
}

TEST_F(MemoryTest, RefusesSizesThatAreNoMultipleOfTheGranularity) {
  size_t granularity = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemGetAllocationGranularity(&granularity, &prop,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, kHandle);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, kHandle + 4096, 0, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, 0, 0, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kHandle / 2, &prop, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, RefusesToMapWhereItDoesNotFit) {
  const CUdeviceptr address = NewReservation(2 * kHandle);
  const CUmemGenericAllocationHandle handle = NewHandle();
  const CUmemGenericAllocationHandle large = NewHandle(2 * kHandle);
  // Unaligned, with an offset, part of a handle, more than a handle, past the
  // reservation, outside any.
  EXPECT_NE(cuMemMap(address + 4096, kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address, kHandle, kHandle, large, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address, kHandle, 0, large, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address, 2 * kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address + kHandle, 2 * kHandle, 0, large, 0),
            CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address + 16 * kHandle, kHandle, 0, handle, 0),
            CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address, kHandle, 0, handle + 12345, 0), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_live_mappings(), 0);
  // Over a mapping, exactly and in part.
  EXPECT_EQ(cuMemMap(address + kHandle, kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address + kHandle, kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemMap(address, 2 * kHandle, 0, large, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(address + kHandle, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(large), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, 2 * kHandle), CUDA_SUCCESS);
}

TEST_F(MemoryTest, RefusesToUnmapPartOfAMapping) {
  const CUdeviceptr address = NewReservation(4 * kHandle);
  const CUmemGenericAllocationHandle large = NewHandle(2 * kHandle);
  const CUmemGenericAllocationHandle small = NewHandle();
  ASSERT_EQ(cuMemMap(address, 2 * kHandle, 0, large, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address + 2 * kHandle, kHandle, 0, small, 0),
            CUDA_SUCCESS);
  EXPECT_NE(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemUnmap(address + kHandle, kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemUnmap(address, 4 * kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemUnmap(address + 3 * kHandle, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_live_mappings(), 2);
  // Several whole mappings at once are fine.
  EXPECT_EQ(cuMemUnmap(address, 3 * kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemUnmap(address, 3 * kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(large), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(small), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, 4 * kHandle), CUDA_SUCCESS);
}

TEST_F(MemoryTest, RefusesToFreeAReservationInUseOrInPart) {
  const CUdeviceptr address = NewReservation(2 * kHandle);
  const CUmemGenericAllocationHandle handle = NewHandle();
  ASSERT_EQ(cuMemMap(address + kHandle, kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemAddressFree(address, 2 * kHandle), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(address + kHandle, kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemAddressFree(address + kHandle, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, 2 * kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemAddressFree(address, 2 * kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(MemoryTest, RefusesToReleaseTwiceAndNeverReusesAHandle) {
  const CUmemGenericAllocationHandle first = NewHandle();
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(first), CUDA_ERROR_INVALID_VALUE);
  const CUmemGenericAllocationHandle second = NewHandle();
  EXPECT_NE(first, second);
  const CUdeviceptr address = NewReservation(kHandle);
  EXPECT_NE(cuMemMap(address, kHandle, 0, first, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(second), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

TEST_F(MemoryTest, AReleasedHandleLivesUntilItIsUnmapped) {
  const CUdeviceptr address = NewReservation(kHandle);
  const CUmemGenericAllocationHandle handle = NewHandle();
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cudasim_used(0), kHandle);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(
      cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(address)),
      CUDA_SUCCESS);
  EXPECT_EQ(again, handle);
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), kHandle);
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), 0u);
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

TEST_F(MemoryTest, AMappingIsOfNoUseBeforeAccessIsGranted) {
  const CUdeviceptr address = NewReservation(kHandle);
  const CUmemGenericAllocationHandle handle = NewHandle();
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(address, 1, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(Violation(0), HasSubstr("no access was granted"));
  // The device is broken from here on.
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  cudasim_clear_errors();
  EXPECT_EQ(Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(address, 1, 16), CUDA_SUCCESS);
  // A new mapping at the same address starts without access again.
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_range_is_accessible(address, kHandle), 0);
  EXPECT_EQ(cuMemsetD8(address, 1, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  cudasim_clear_errors();
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

// The error of the device is the answer, and nothing has happened.
TEST_F(MemoryTest, ABrokenDeviceTakesNothingBack) {
  Block block;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cudasim_fail("cudaDeviceSynchronize", 1, cudaErrorAssert, 0), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorAssert);
  EXPECT_EQ(cuMemUnmap(block.address, kHandle), CUDA_ERROR_ASSERT);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_ASSERT);
  EXPECT_EQ(cudasim_used(0), 2 * kHandle);
  cudasim_clear_errors();
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), kHandle);
}

TEST_F(MemoryTest, ReadOnlyAccessRefusesWrites) {
  Block block;
  ASSERT_EQ(cuMemsetD8(block.address, 7, 16), CUDA_SUCCESS);
  ASSERT_EQ(Grant(block.address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_SUCCESS);
  char byte = 0;
  EXPECT_EQ(cuMemcpyDtoH(&byte, block.address, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 7);
  EXPECT_EQ(cuMemsetD8(block.address, 8, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(Violation(0), HasSubstr("read-only"));
  cudasim_clear_errors();
  ASSERT_EQ(Grant(block.address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_NONE),
            CUDA_SUCCESS);
  EXPECT_EQ(cudasim_range_is_accessible(block.address, kHandle), 0);
  EXPECT_EQ(cuMemcpyDtoH(&byte, block.address, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(MemoryTest, ACopyPastAMappingIsAViolationThatNamesTheRange) {
  Block block;
  std::vector<char> host(kHandle + 4096);
  EXPECT_EQ(cudaMemcpy(host.data(), block.pointer(), host.size(),
                       cudaMemcpyDeviceToHost),
            cudaErrorIllegalAddress);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("cudaMemcpy"));
  EXPECT_THAT(Violation(0), HasSubstr("+2101248 bytes"));
}

TEST_F(MemoryTest, BytesStayWithTheHandleNotWithTheAddress) {
  const CUdeviceptr address = NewReservation(2 * kHandle);
  const CUmemGenericAllocationHandle handle = NewHandle();
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(address, 0x01020304, kHandle / 4), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  const CUdeviceptr moved = address + kHandle;
  ASSERT_EQ(cuMemMap(moved, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(Grant(moved, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  uint32_t last = 0;
  ASSERT_EQ(cuMemcpyDtoH(&last, moved + kHandle - 4, 4), CUDA_SUCCESS);
  EXPECT_EQ(last, 0x01020304u);
  ASSERT_EQ(cuMemUnmap(moved, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, 2 * kHandle), CUDA_SUCCESS);
}

TEST_F(MemoryTest, CapacityIsALimitOnWhatIsAliveNotOnWhatIsMapped) {
  cudasim_set_capacity(0, 4 * kHandle);
  const CUmemGenericAllocationHandle first = NewHandle(3 * kHandle);
  const CUmemAllocationProp prop = DeviceProp();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, 2 * kHandle, &prop, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, kHandle + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, kHandle);
  EXPECT_EQ(total, 4 * kHandle);
  EXPECT_EQ(cudaMalloc(&pointer, 1), cudaSuccess);
  EXPECT_EQ(cudasim_used(0), 4 * kHandle);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), 0u);
  EXPECT_EQ(cudasim_peak_used(0), 4 * kHandle);
}

TEST_F(MemoryTest, CudaMallocMemoryIsFreedOnlyByCudaFreeAndOnlyOnce) {
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, 100), cudaSuccess);
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(pointer);
  EXPECT_NE(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  EXPECT_NE(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cudaFree(static_cast<char*>(pointer) + 64), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  Block block;
  EXPECT_EQ(cudaFree(block.pointer()), cudaErrorInvalidValue);
}

TEST_F(MemoryTest, TheHostCannotReadADeviceAddress) {
  Block block;
  EXPECT_DEATH(
      {
        volatile char byte = *static_cast<volatile char*>(block.pointer());
        (void)byte;
      },
      "");
}

TEST_F(MemoryTest, ViewsOfDeviceAddressesAreNoPointersOfTheProgram) {
  Block block;
  char byte = 0;
  EXPECT_EQ(cudaMemcpy(&byte, cudasim_host_view(block.pointer()), 1,
                       cudaMemcpyDefault),
            cudaErrorInvalidValue);
  EXPECT_THAT(Violation(0), HasSubstr("the host's view"));
}

TEST_F(MemoryTest, MemoryLocatedOnTheHostCanBeReadAtItsAddress) {
  CUmemAllocationProp prop = DeviceProp();
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), 0u);
  const CUdeviceptr address = NewReservation(kHandle);
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemSetAccess(address, kHandle, &access, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(address, 42, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(reinterpret_cast<char*>(address)[kHandle - 1], 42);
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
  // Device memory is never granted to the host.
  Block block;
  EXPECT_NE(cuMemSetAccess(block.address, kHandle, &access, 1), CUDA_SUCCESS);
}

TEST_F(MemoryTest, AddressesAreNotHandedOutAgainSoon) {
  const CUdeviceptr first = NewReservation(kHandle);
  ASSERT_EQ(cuMemAddressFree(first, kHandle), CUDA_SUCCESS);
  const CUdeviceptr second = NewReservation(kHandle);
  EXPECT_NE(first, second);
  // A hint is honoured while it is free.
  CUdeviceptr third = 0;
  ASSERT_EQ(cuMemAddressReserve(&third, kHandle, 0, first, 0), CUDA_SUCCESS);
  EXPECT_EQ(third, first);
  CUdeviceptr fourth = 0;
  ASSERT_EQ(cuMemAddressReserve(&fourth, kHandle, 0, first, 0), CUDA_SUCCESS);
  EXPECT_NE(fourth, first);
  for (CUdeviceptr each : {second, third, fourth}) {
    EXPECT_EQ(cuMemAddressFree(each, kHandle), CUDA_SUCCESS);
  }
}

TEST_F(MemoryTest, PinnedMemoryIsKnownByItsRange) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 10000, cudaHostAllocDefault), cudaSuccess);
  cudaPointerAttributes attributes;
  ASSERT_EQ(
      cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 9999),
      cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_EQ(
      cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 10000),
      cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  Block block;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, block.pointer()),
            cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 0);
  EXPECT_EQ(attributes.devicePointer, block.pointer());
  EXPECT_EQ(attributes.hostPointer, nullptr);
  EXPECT_EQ(cudaHostRegister(static_cast<char*>(pinned) + 4096, 4096, 0),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
  std::vector<char> own(8192);
  ASSERT_EQ(cudaHostRegister(own.data(), own.size(), 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(own.data() + 100, 8, 0),
            cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaFreeHost(own.data()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
}

TEST_F(MemoryTest, ACopyWhosePointersDoNotFitItsKindIsRefused) {
  Block block;
  char host[16] = {};
  EXPECT_EQ(cudaMemcpy(host, block.pointer(), 16, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, block.pointer(), 16, cudaMemcpyDeviceToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, block.pointer(), 16, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
}

TEST_F(MemoryTest, TwoDimensionalCopiesMoveRows) {
  Block block;
  const char from[] = "abcd....efgh....";
  ASSERT_EQ(
      cudaMemcpy2D(block.pointer(), 4, from, 8, 4, 2, cudaMemcpyHostToDevice),
      cudaSuccess);
  char to[9] = "";
  ASSERT_EQ(cudaMemcpy(to, block.pointer(), 8, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_STREQ(to, "abcdefgh");
}

TEST_F(MemoryTest, ADeviceWithoutVirtualMemoryHasCudaMalloc) {
  ASSERT_EQ(cudasim_set_virtual_memory(-1, 0), 0);
  int supported = 1;
  EXPECT_EQ(cuDeviceGetAttribute(
                &supported,
                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(supported, 0);
  const CUmemAllocationProp prop = DeviceProp();
  size_t granularity = 0;
  EXPECT_EQ(cuMemGetAllocationGranularity(&granularity, &prop,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_NOT_SUPPORTED);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, kHandle), cudaSuccess);
  EXPECT_EQ(cudaMemset(pointer, 1, 16), cudaSuccess);
  EXPECT_EQ(cudasim_set_virtual_memory(-1, 1), -1);  // not while memory lives
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudasim_set_virtual_memory(-1, 1), 0);
}

TEST_F(MemoryTest, TheLeakReportNamesWhatIsAlive) {
  const CUdeviceptr address = NewReservation(kHandle);
  const CUmemGenericAllocationHandle handle = NewHandle();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  char text[4096];
  cudasim_leak_report(text, sizeof(text));
  EXPECT_THAT(text, HasSubstr("handle 0x51"));
  EXPECT_THAT(text, HasSubstr("reservation [0x"));
  EXPECT_THAT(text, HasSubstr("event 0xe7"));
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

}  // namespace
}  // namespace cudasim
