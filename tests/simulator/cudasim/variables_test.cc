// SPDX-License-Identifier: Apache-2.0
//
// Variables of device code, and libraries of kernels.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

// What nvcc generates for each variable of a program.
extern "C" void __cudaRegisterVar(void** binary, char* symbol,
                                  char* device_address, const char* name,
                                  int external, size_t bytes, int constant,
                                  int global);

namespace cudasim {
namespace {

using testing::HasSubstr;

// Their host stand-ins; only the addresses matter.
char counter[8];
char table[1000];
char unread[8];

class VariablesTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    __cudaRegisterVar(nullptr, counter, counter, "counter", 0, 8, 0, 0);
    __cudaRegisterVar(nullptr, unread, unread, "unread", 0, 8, 0, 0);
    __cudaRegisterVar(nullptr, table, table, "table", 0, 1000, 1, 0);
  }
};

TEST_F(VariablesTest, AModulesOwnTakesNothingOfTheCapacity) {
  cudasim_set_module_variable("tests_words", 16);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "anything"), CUDA_SUCCESS);
  const uint64_t used = cudasim_used(0);
  const long mappings = cudasim_live_mappings();
  CUdeviceptr words = 0, again = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuModuleGetGlobal(&words, &bytes, module, "tests_words"),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, 16u);
  ASSERT_EQ(cuModuleGetGlobal(&again, nullptr, module, "tests_words"),
            CUDA_SUCCESS);
  EXPECT_EQ(again, words);
  EXPECT_EQ(cudasim_used(0), used);
  EXPECT_EQ(cudasim_live_mappings(), mappings);
  const std::array<long, 2> out{3, 4};
  std::array<long, 2> in{};
  ASSERT_EQ(cuMemcpyHtoD(words, out.data(), 16), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH(in.data(), words, 16), CUDA_SUCCESS);
  EXPECT_EQ(in, out);
  EXPECT_EQ(cuModuleGetGlobal(&again, nullptr, module, "tests_none"),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cudasim_refused_calls(), 1);
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(VariablesTest, AnInitialValueIsNotMadeUp) {
  long value = 0;
  EXPECT_EQ(cudaMemcpyFromSymbol(&value, unread, 8, 0, cudaMemcpyDeviceToHost),
            cudaErrorNotSupported);
  EXPECT_EQ(cudasim_refused_calls(), 1);
  char names[256] = "";
  EXPECT_GT(cudasim_refused_names(names, sizeof(names)), 0);
  EXPECT_THAT(names, HasSubstr("of a variable that nothing has written"));
}

TEST_F(VariablesTest, WhatIsWrittenIsReadBackAndLiesOnTheDevice) {
  const long value = 42;
  ASSERT_EQ(cudaMemcpyToSymbol(counter, &value, 8, 0, cudaMemcpyHostToDevice),
            cudaSuccess);
  long back = 0;
  EXPECT_EQ(cudaMemcpyFromSymbol(&back, counter, 8, 0, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(back, 42);
  void* address = nullptr;
  ASSERT_EQ(cudaGetSymbolAddress(&address, counter), cudaSuccess);
  EXPECT_EQ(*static_cast<long*>(cudasim_host_view(address)), 42);
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, address), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
}

TEST_F(VariablesTest, VariablesDoNotOverlapAndKeepTheirSize) {
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(cudaGetSymbolAddress(&first, table), cudaSuccess);
  ASSERT_EQ(cudaGetSymbolAddress(&second, counter), cudaSuccess);
  const auto distance = static_cast<char*>(first) - static_cast<char*>(second);
  EXPECT_TRUE(distance >= 8 || distance <= -1000) << distance;
  size_t bytes = 0;
  EXPECT_EQ(cudaGetSymbolSize(&bytes, table), cudaSuccess);
  EXPECT_EQ(bytes, 1000);
  std::array<char, 10> data = {};
  EXPECT_EQ(
      cudaMemcpyToSymbol(table, data.data(), 10, 990, cudaMemcpyHostToDevice),
      cudaSuccess);
  EXPECT_EQ(
      cudaMemcpyToSymbol(table, data.data(), 10, 991, cudaMemcpyHostToDevice),
      cudaErrorInvalidValue);
}

TEST_F(VariablesTest, RefusalsAreTheRuntimes) {
  char unknown = 0;
  void* address = nullptr;
  EXPECT_EQ(cudaGetSymbolAddress(&address, &unknown), cudaErrorInvalidSymbol);
  EXPECT_EQ(cudaMemcpyToSymbol(counter, &unknown, 1, 0, cudaMemcpyDeviceToHost),
            cudaErrorInvalidMemcpyDirection);
  ASSERT_EQ(cudaGetSymbolAddress(&address, counter), cudaSuccess);
  EXPECT_EQ(cudaFree(address), cudaErrorInvalidValue);
}

TEST_F(VariablesTest, TheMemoryOfVariablesIsNoLeak) {
  void* address = nullptr;
  ASSERT_EQ(cudaGetSymbolAddress(&address, counter), cudaSuccess);
  EXPECT_EQ(cudasim_live_handles(), 0);
  EXPECT_GT(cudasim_used(0), 0);
  EXPECT_EQ(cudasim_range_is_accessible(reinterpret_cast<uint64_t>(address), 8),
            1);
}

class LibraryTest : public SimulatorTest {};

TEST_F(LibraryTest, KernelsAreTokensUntilTheirLibraryIsUnloaded) {
  cudaLibrary_t library = nullptr;
  ASSERT_EQ(cudaLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr,
                                nullptr, 0),
            cudaSuccess);
  cudaKernel_t kernel = nullptr;
  ASSERT_EQ(cudaLibraryGetKernel(&kernel, library, "triton_poi"), cudaSuccess);
  EXPECT_EQ(
      cudaKernelSetAttributeForDevice(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 16, 0),
      cudaSuccess);
  EXPECT_EQ(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1),
                             dim3(1), nullptr, 0, nullptr),
            cudaErrorNotSupported);
  cudasim_clear_errors();
  EXPECT_EQ(cudaLibraryUnload(library), cudaSuccess);
  EXPECT_EQ(cudaLibraryUnload(library), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaLibraryGetKernel(&kernel, library, "triton_poi"),
            cudaErrorInvalidResourceHandle);
}

TEST_F(LibraryTest, TheDriverSeesTheSameKernels) {
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "triton_red"), CUDA_SUCCESS);
  CUfunction function = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
  const char* name = nullptr;
  ASSERT_EQ(cuFuncGetName(&name, function), CUDA_SUCCESS);
  EXPECT_STREQ(name, "triton_red");
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(LibraryTest, WhatCannotBeLoadedIsRefused) {
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoad(&module, "/no/such/file.cubin"),
            CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleUnload(reinterpret_cast<CUmodule>(&module)),
            CUDA_ERROR_INVALID_HANDLE);
  // The image is not read: its variables are not known.
  unsigned count = 0;
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetKernelCount(&count, library), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
}

}  // namespace
}  // namespace cudasim
