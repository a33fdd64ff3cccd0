// SPDX-License-Identifier: Apache-2.0
//
// Four devices, of which 0-1 and 2-3 can reach each other: what peer access
// changes, what needs none, and every refusal.

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

class PeersTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    for (int device = 0; device < 4; ++device) {
      cudaSetDevice(device);
      ASSERT_EQ(cudaMalloc(&memory_[device], kHandle), cudaSuccess);
      ASSERT_EQ(cudaMemset(memory_[device], 10 + device, kHandle), cudaSuccess);
    }
    cudaSetDevice(0);
  }
  void TearDown() override {
    cudasim_clear_errors();
    for (void* each : memory_) EXPECT_EQ(cudaFree(each), cudaSuccess);
    cudaSetDevice(0);
    SimulatorTest::TearDown();
  }
  char Byte(int device) const {
    return *static_cast<char*>(cudasim_host_view(memory_[device]));
  }

  void* memory_[4] = {};
};

TEST_F(PeersTest, TheMachineSaysWhoCanReachWhom) {
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      int can = -1;
      ASSERT_EQ(cudaDeviceCanAccessPeer(&can, from, to), cudaSuccess);
      EXPECT_EQ(can, from != to && from / 2 == to / 2) << from << to;
      int driver = -1;
      ASSERT_EQ(cuDeviceCanAccessPeer(&driver, from, to), CUDA_SUCCESS);
      EXPECT_EQ(driver, can);
      int link = -1;
      if (from == to) {
        EXPECT_EQ(cudaDeviceGetP2PAttribute(
                      &link, cudaDevP2PAttrAccessSupported, from, to),
                  cudaErrorInvalidDevice);
      } else {
        EXPECT_EQ(cudaDeviceGetP2PAttribute(
                      &link, cudaDevP2PAttrAccessSupported, from, to),
                  cudaSuccess);
        EXPECT_EQ(link, can);
      }
    }
  }
  int can = 0;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 4), cudaErrorInvalidDevice);
}

TEST_F(PeersTest, EnablingAnswersAsCudaDoes) {
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(4, 0), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(2, 0), cudaErrorPeerAccessUnsupported);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0),
            cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
  cudaGetLastError();

  CUcontext own = nullptr;
  CUcontext peer = nullptr;
  CUcontext far = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&own, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&far, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(own, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxEnablePeerAccess(nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxEnablePeerAccess(far, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0),
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(cuCtxDisablePeerAccess(peer), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDisablePeerAccess(peer), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

TEST_F(PeersTest, WorkOfAnotherDeviceNeedsAccessInItsDirection) {
  // The other way round does not help.
  cudaSetDevice(1);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  cudaSetDevice(0);
  EXPECT_EQ(cudaMemset(memory_[1], 1, 16), cudaErrorIllegalAddress);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_NE(Violation(0).find("is memory of device 1 and device 0 has no peer "
                              "access to it"),
            std::string::npos)
      << Violation(0);
  cudasim_clear_errors();
  cudasim_clear_violations();
  ASSERT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaMemset(memory_[1], 1, 16), cudaSuccess);
  EXPECT_EQ(Byte(1), 1);
  ASSERT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
  EXPECT_EQ(cudaMemset(memory_[1], 2, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(Byte(1), 1);
}

TEST_F(PeersTest, BridgedOperatorsAndTwinsNeedItToo) {
  const cudasim_access read = {reinterpret_cast<uint64_t>(memory_[1]), 64, 0};
  cudasim_note_access(nullptr, "an operator of device 0", &read, 1);
  EXPECT_EQ(cudasim_violation_count(), 1);
  cudasim_clear_errors();
  cudasim_clear_violations();
  ASSERT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  cudasim_note_access(nullptr, "an operator of device 0", &read, 1);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(PeersTest, CopiesNeedNoAccess) {
  for (const int mode : {0, 1}) {
    cudasim_set_mode(mode);
    EXPECT_EQ(cudaMemcpyPeer(memory_[3], 3, memory_[0], 0, kHandle),
              cudaSuccess);
    EXPECT_EQ(
        cudaMemcpyPeerAsync(memory_[2], 2, memory_[1], 1, kHandle, nullptr),
        cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(Byte(3), 10);
    EXPECT_EQ(Byte(2), 11);
    EXPECT_EQ(cudaMemcpy(memory_[3], memory_[1], 8, cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(memory_[2], memory_[0], 8,
                              cudaMemcpyDeviceToDevice, nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(Byte(3), 11);
    EXPECT_EQ(Byte(2), 10);
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
  EXPECT_EQ(cudaMemcpyPeer(memory_[3], 4, memory_[0], 0, 1),
            cudaErrorInvalidDevice);
  EXPECT_EQ(cudaMemcpyPeerAsync(memory_[3], 3, memory_[0], -1, 1, nullptr),
            cudaErrorInvalidDevice);
}

TEST_F(PeersTest, MappedMemoryFollowsItsGrants) {
  Block block;  // device 0, granted to device 0
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  access.location.id = 2;
  EXPECT_EQ(cuMemSetAccess(block.address, block.bytes(), &access, 1),
            CUDA_ERROR_INVALID_DEVICE);
  // Peer access says nothing about it, grants do.
  cudaSetDevice(1);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(cudaMemset(block.pointer(), 1, 16), cudaErrorIllegalAddress);
  cudasim_clear_errors();
  // The copy that names both devices needs the owner's grant only, the other
  // one that of the device it runs on.
  EXPECT_EQ(cudaMemcpyPeer(block.pointer(), 0, memory_[1], 1, 16), cudaSuccess);
  EXPECT_EQ(block.Peek(), 11);
  EXPECT_EQ(
      cudaMemcpy(block.pointer(), memory_[1], 16, cudaMemcpyDeviceToDevice),
      cudaErrorIllegalAddress);
  cudasim_clear_errors();
  access.location.id = 1;
  EXPECT_EQ(cuMemSetAccess(block.address, block.bytes(), &access, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaMemset(block.pointer(), 1, 16), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy(block.pointer(), memory_[1], 16, cudaMemcpyDeviceToDevice),
      cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 2);
}

TEST_F(PeersTest, EachDeviceHasItsOwnCapacity) {
  cudasim_set_capacity(2, 3 * kHandle);
  void* more = nullptr;
  cudaSetDevice(2);
  EXPECT_EQ(cudaMalloc(&more, 3 * kHandle), cudaErrorMemoryAllocation);
  cudaSetDevice(3);
  EXPECT_EQ(cudaMalloc(&more, 3 * kHandle), cudaSuccess);
  EXPECT_EQ(cudasim_used(2), kHandle);
  EXPECT_EQ(cudasim_used(3), 4 * kHandle);
  size_t free = 0;
  size_t total = 0;
  cudaSetDevice(2);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, 3 * kHandle);
  EXPECT_EQ(free, 2 * kHandle);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
}

TEST_F(PeersTest, DevicesAreFoundByTheirBus) {
  for (int device = 0; device < 4; ++device) {
    char text[32];
    ASSERT_EQ(cudaDeviceGetPCIBusId(text, sizeof(text), device), cudaSuccess);
    int found = -1;
    ASSERT_EQ(cudaDeviceGetByPCIBusId(&found, text), cudaSuccess);
    EXPECT_EQ(found, device);
    ASSERT_EQ(cuDeviceGetPCIBusId(text, sizeof(text), device), CUDA_SUCCESS);
    CUdevice driver = -1;
    // The domain and the function may be left out.
    ASSERT_EQ(cuDeviceGetByPCIBusId(&driver, text + 5), CUDA_SUCCESS);
    EXPECT_EQ(driver, device);
  }
  int found = -1;
  for (const char* wrong : {"", "0000:09:00.0", "0000:00:00.0", "bus",
                            "0001:01:00.0", "0000:01:00.0x"}) {
    EXPECT_EQ(cudaDeviceGetByPCIBusId(&found, wrong), cudaErrorInvalidDevice)
        << wrong;
  }
  EXPECT_EQ(cudaDeviceGetByPCIBusId(&found, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace cudasim
