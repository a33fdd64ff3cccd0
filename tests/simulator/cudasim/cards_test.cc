// SPDX-License-Identifier: Apache-2.0
//
// What a device says it is, by card.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

class CardsTest : public SimulatorTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(cudasim_set_card(0, "generic"), 0);
    SimulatorTest::TearDown();
  }
  static int Attribute(cudaDeviceAttr which) {
    int value = -1;
    EXPECT_EQ(cudaDeviceGetAttribute(&value, which, 0), cudaSuccess);
    return value;
  }
};

TEST_F(CardsTest, GenericDeviceIsAsItAlwaysWas) {
  cudaDeviceProp prop;
  ASSERT_EQ(cudaGetDeviceProperties(&prop, 0), cudaSuccess);
  EXPECT_STREQ(prop.name, "cudasim (simulated device)");
  EXPECT_EQ(prop.major, 9);
  EXPECT_EQ(prop.multiProcessorCount, 132);
  EXPECT_EQ(prop.l2CacheSize, 50 << 20);
  EXPECT_EQ(prop.ECCEnabled, 0);
  EXPECT_EQ(cudasim_is_modelled(0), 0);
  EXPECT_EQ(cudasim_card_figure(0, "cublas_workspace_bytes"), 0);
  EXPECT_EQ(cudasim_card_figure(0, "context_bytes"), 0);
}

TEST_F(CardsTest, EachPresetReportsItsOwnFigures) {
  struct Wanted {
    const char* card;
    int major, minor, multiprocessors, threads, optin, bus;
    size_t memory_mib;
    double workspace;
  };
  const Wanted all[] = {
      {"h200", 9, 0, 132, 2048, 227, 6144, 143156, 32 << 20},
      {"a100", 8, 0, 108, 2048, 163, 5120, 81152, 8519680},
      {"rtx4090", 8, 9, 128, 1536, 99, 384, 24216, 8519680},
      {"t4", 7, 5, 40, 1024, 64, 256, 14930, 8519680},
  };
  for (const Wanted& wanted : all) {
    SCOPED_TRACE(wanted.card);
    ASSERT_EQ(cudasim_set_card(0, wanted.card), 0);
    EXPECT_EQ(cudasim_is_modelled(0), 1);
    char key[16];
    EXPECT_GT(cudasim_card(0, key, sizeof(key)), 0);
    EXPECT_STREQ(key, wanted.card);
    cudaDeviceProp prop;
    ASSERT_EQ(cudaGetDeviceProperties(&prop, 0), cudaSuccess);
    EXPECT_NE(std::string(prop.name).find("simulated device"),
              std::string::npos);
    EXPECT_EQ(prop.major, wanted.major);
    EXPECT_EQ(prop.minor, wanted.minor);
    EXPECT_EQ(prop.multiProcessorCount, wanted.multiprocessors);
    EXPECT_EQ(prop.maxThreadsPerMultiProcessor, wanted.threads);
    EXPECT_EQ(prop.sharedMemPerBlockOptin >> 10, size_t(wanted.optin));
    EXPECT_EQ(prop.memoryBusWidth, wanted.bus);
    EXPECT_EQ(prop.totalGlobalMem >> 20, wanted.memory_mib);
    EXPECT_EQ(cudasim_card_figure(0, "cublas_workspace_bytes"),
              wanted.workspace);
    // The driver and the attributes agree with the properties.
    EXPECT_EQ(Attribute(cudaDevAttrMultiProcessorCount),
              wanted.multiprocessors);
    EXPECT_EQ(Attribute(cudaDevAttrComputeCapabilityMajor), wanted.major);
    EXPECT_EQ(Attribute(cudaDevAttrGlobalMemoryBusWidth), wanted.bus);
    EXPECT_EQ(Attribute(cudaDevAttrL2CacheSize), prop.l2CacheSize);
    EXPECT_EQ(Attribute(cudaDevAttrEccEnabled), prop.ECCEnabled);
    char name[64];
    ASSERT_EQ(cuDeviceGetName(name, sizeof(name), 0), CUDA_SUCCESS);
    EXPECT_STREQ(name, prop.name);
    size_t total = 0;
    ASSERT_EQ(cuDeviceTotalMem(&total, 0), CUDA_SUCCESS);
    EXPECT_EQ(total, prop.totalGlobalMem);
    // One block that takes all shared memory it may.
    int blocks = 0;
    ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr,
                                                            1024, 0),
              cudaSuccess);
    EXPECT_EQ(blocks, wanted.threads / 1024);
  }
}

// The bus has less in both directions than in each, and more than in one.
TEST_F(CardsTest, PresetBusIsSlowerInBothDirections) {
  for (const char* card : {"h200", "a100", "rtx4090", "wsl2"}) {
    SCOPED_TRACE(card);
    ASSERT_EQ(cudasim_set_card(0, card), 0);
    const double up = cudasim_card_figure(0, "pcie_up_gb_per_s");
    const double down = cudasim_card_figure(0, "pcie_down_gb_per_s");
    const double both = cudasim_card_figure(0, "pcie_both_gb_per_s");
    EXPECT_LT(both, up + down);
    EXPECT_GT(both, std::max(up, down));
  }
  ASSERT_EQ(cudasim_set_card(0, "t4"), 0);
  EXPECT_EQ(cudasim_card_figure(0, "pcie_both_gb_per_s"), 0);
}

TEST_F(CardsTest, UnderWsl2HandlesAreRefusedThatOthersHave) {
  const auto make = [](int types, int rdma) {
    CUmemAllocationProp prop = DeviceProp();
    prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    prop.allocFlags.gpuDirectRDMACapable = rdma;
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUresult created = cuMemCreate(&handle, kHandle, &prop, 0);
    if (created != CUDA_SUCCESS) return created;
    EXPECT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
    const CUresult granted =
        Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EXPECT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
    return granted;
  };
  for (const char* card : {"generic", "h200", "wsl2"}) {
    SCOPED_TRACE(card);
    const bool wsl2 = std::string(card) == "wsl2";
    ASSERT_EQ(cudasim_set_card(0, card), 0);
    EXPECT_EQ(Attribute(static_cast<cudaDeviceAttr>(
                  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)),
              std::string(card) != "generic");
    EXPECT_EQ(make(CU_MEM_HANDLE_TYPE_NONE, 0), CUDA_SUCCESS);
    EXPECT_EQ(make(CU_MEM_HANDLE_TYPE_NONE, 1),
              wsl2 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    EXPECT_EQ(make(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              wsl2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  }
}

TEST_F(CardsTest, TheContextIsTakenFromTheCardsMemory) {
  ASSERT_EQ(cudasim_set_card(0, "t4"), 0);
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total - free, cudasim_card_figure(0, "context_bytes"));
  // The last handle that fits, and one more.
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemCreate(&handle, free, &prop, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle second = 0;
  EXPECT_EQ(cuMemCreate(&second, kHandle, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(CardsTest, CublasIsTakenOnce) {
  ASSERT_EQ(cudasim_set_card(0, "h200"), 0);
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  cudasim_load_cublas(0);
  cudasim_load_cublas(0);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before - after, cudasim_card_figure(0, "cublas_library_bytes"));
  EXPECT_GT(before, after);
}

TEST_F(CardsTest, LimitsFollowTheCard) {
  ASSERT_EQ(cudasim_set_card(0, "a100"), 0);
  size_t value = 0;
  ASSERT_EQ(cudaDeviceGetLimit(&value, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(value, 1024u);
  ASSERT_EQ(cudaDeviceGetLimit(&value, cudaLimitMallocHeapSize), cudaSuccess);
  EXPECT_EQ(value, size_t{8} << 20);
  ASSERT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 4096), cudaSuccess);
  ASSERT_EQ(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, 4096u);
  // No more of the L2 than the card sets aside.
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 30),
            CUDA_SUCCESS);
  ASSERT_EQ(cudaDeviceGetLimit(&value, cudaLimitPersistingL2CacheSize),
            cudaSuccess);
  EXPECT_EQ(value, size_t{25} << 20);
  EXPECT_EQ(cudaDeviceGetLimit(&value, cudaLimitDevRuntimeSyncDepth),
            cudaSuccess);
  ASSERT_EQ(cudasim_set_card(0, "h200"), 0);
  EXPECT_EQ(cudaDeviceGetLimit(&value, cudaLimitDevRuntimeSyncDepth),
            cudaErrorUnsupportedLimit);
  EXPECT_EQ(cudaDeviceGetLimit(&value, static_cast<cudaLimit>(99)),
            cudaErrorUnsupportedLimit);
  EXPECT_EQ(cudaDeviceGetLimit(nullptr, cudaLimitStackSize),
            cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_F(CardsTest, AProfileWithAMistakeChangesNothing) {
  char before[8192];
  ASSERT_GT(cudasim_profile(0, before, sizeof(before)), 100);
  for (const char* wrong :
       {"[]", "{", R"({"hbm_gb_s": 1})", R"({"hbm_gb_per_s": 0})",
        R"({"hbm_gb_per_s": "fast"})", R"({"multiprocessors": 1.5})",
        R"({"compute_efficiency": 1.1})", R"({"card": "h2000"})",
        R"({"calls_ns": {"cuMemCreat": 5}})",
        R"({"calls_ns": {"cuMemCreate": -5}})", R"({"kernel_ns": -1})"}) {
    EXPECT_EQ(cudasim_apply_profile(0, wrong), -1) << wrong;
  }
  char after[8192];
  ASSERT_GT(cudasim_profile(0, after, sizeof(after)), 100);
  EXPECT_STREQ(after, before);
}

TEST_F(CardsTest, AProfileGivesTheSameCardAgain) {
  ASSERT_EQ(cudasim_set_card(0, "t4"), 0);
  char text[8192];
  ASSERT_LT(cudasim_profile(0, text, sizeof(text)), 8192);
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
  ASSERT_EQ(cudasim_apply_profile(0, text), 0);
  char again[8192];
  cudasim_profile(0, again, sizeof(again));
  EXPECT_STREQ(again, text);
  EXPECT_EQ(cudasim_card_figure(0, "pcie_up_gb_per_s"), 12);
}

TEST_F(CardsTest, UnknownNamesAreRefused) {
  EXPECT_EQ(cudasim_set_card(0, "h2000"), -1);
  EXPECT_EQ(cudasim_set_card(7, "h200"), -1);
  EXPECT_EQ(cudasim_card_figure(0, "hbm"), -1);
  EXPECT_EQ(cudasim_is_modelled(0), 0);
}

}  // namespace
}  // namespace cudasim
