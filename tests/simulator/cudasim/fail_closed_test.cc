// SPDX-License-Identifier: Apache-2.0
//
// Every door through which a kernel can be launched fails closed when the
// kernel has no host twin: it says so, the launch is counted and named, and the
// device stays broken. Entry points that only refuse are counted the same.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

extern "C" {
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFunction(void** binary, const char* function,
                            char* device_function, const char* device_name,
                            int thread_limit, uint3* thread, uint3* block,
                            dim3* block_size, dim3* grid_size, int* warp);
void __cudaUnregisterFatBinary(void** binary);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                               void** arguments, size_t shared,
                               cudaStream_t stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function);
}

namespace cudasim {
namespace {

using testing::HasSubstr;

void Stub() {}

const void* Function() { return reinterpret_cast<const void*>(&Stub); }

CUfunction DriverFunction() {
  static CUfunction function = [] {
    CUmodule module = nullptr;
    CUfunction made = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&made, module, "tests_missing"),
              CUDA_SUCCESS);
    return made;
  }();
  return function;
}

struct Door {
  const char* name;
  std::function<int(cudaStream_t)> launch;
};

void PrintTo(const Door& door, std::ostream* out) { *out << door.name; }

std::vector<Door> Doors() {
  return {
      {"cudaLaunchKernel",
       [](cudaStream_t stream) -> int {
         return cudaLaunchKernel(Function(), dim3(1), dim3(1), nullptr, 0,
                                 stream);
       }},
      {"__cudaLaunchKernel",
       [](cudaStream_t stream) -> int {
         cudaKernel_t kernel = nullptr;
         EXPECT_EQ(__cudaGetKernel(&kernel, Function()), cudaSuccess);
         return __cudaLaunchKernel(kernel, dim3(1), dim3(1), nullptr, 0,
                                   stream);
       }},
      {"cudaLaunchKernelExC",
       [](cudaStream_t stream) -> int {
         cudaLaunchConfig_t config = {};
         config.gridDim = dim3(1);
         config.blockDim = dim3(1);
         config.stream = stream;
         return cudaLaunchKernelExC(&config, Function(), nullptr);
       }},
      {"cudaLaunchCooperativeKernel",
       [](cudaStream_t stream) -> int {
         return cudaLaunchCooperativeKernel(Function(), dim3(1), dim3(1),
                                            nullptr, 0, stream);
       }},
      {"cuLaunchKernel",
       [](cudaStream_t stream) -> int {
         return cuLaunchKernel(DriverFunction(), 1, 1, 1, 1, 1, 1, 0, stream,
                               nullptr, nullptr);
       }},
      {"cuLaunchKernel with packed arguments",
       [](cudaStream_t stream) -> int {
         void* extra[] = {CU_LAUNCH_PARAM_END};
         return cuLaunchKernel(DriverFunction(), 1, 1, 1, 1, 1, 1, 0, stream,
                               nullptr, extra);
       }},
      {"cuLaunchKernelEx",
       [](cudaStream_t stream) -> int {
         CUlaunchConfig config = {};
         config.gridDimX = config.gridDimY = config.gridDimZ = 1;
         config.blockDimX = config.blockDimY = config.blockDimZ = 1;
         config.hStream = stream;
         return cuLaunchKernelEx(&config, DriverFunction(), nullptr, nullptr);
       }},
      {"cuLaunchCooperativeKernel",
       [](cudaStream_t stream) -> int {
         return cuLaunchCooperativeKernel(DriverFunction(), 1, 1, 1, 1, 1, 1, 0,
                                          stream, nullptr);
       }},
      {"cuLaunch",
       [](cudaStream_t) -> int { return cuLaunch(DriverFunction()); }},
      {"cuLaunchGrid",
       [](cudaStream_t) -> int {
         return cuLaunchGrid(DriverFunction(), 1, 1);
       }},
      {"cuLaunchGridAsync",
       [](cudaStream_t stream) -> int {
         return cuLaunchGridAsync(DriverFunction(), 1, 1, stream);
       }},
      {"cuLaunchCooperativeKernelMultiDevice",
       [](cudaStream_t stream) -> int {
         CUDA_LAUNCH_PARAMS parameters = {};
         parameters.function = DriverFunction();
         parameters.hStream = stream;
         return cuLaunchCooperativeKernelMultiDevice(&parameters, 1, 0);
       }},
  };
}

class FailClosedTest : public SimulatorTest,
                       public testing::WithParamInterface<Door> {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    binary_ = __cudaRegisterFatBinary(nullptr);
    __cudaRegisterFunction(binary_, reinterpret_cast<const char*>(&Stub),
                           nullptr, "tests_missing", -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
  }
  void TearDown() override {
    __cudaUnregisterFatBinary(binary_);
    SimulatorTest::TearDown();
  }
  void ExpectClosed(cudaStream_t stream) {
    const long before = cudasim_launches_without_twin();
    EXPECT_EQ(GetParam().launch(stream), cudaErrorNotSupported);
    EXPECT_EQ(cudasim_launches_without_twin(), before + 1);
    EXPECT_EQ(cudasim_launches_with_twin(), 0);
    char name[128] = "";
    EXPECT_GT(cudasim_last_missing_twin(name, sizeof(name)), 0);
    EXPECT_THAT(name, testing::AnyOf(HasSubstr("tests_missing"),
                                     HasSubstr("a kernel of cuLaunch")));
    // What was computed before is not to be trusted from here on.
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorNotSupported);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNotSupported);
    cudasim_clear_errors();
  }

  void** binary_ = nullptr;
};

TEST_P(FailClosedTest, InEagerMode) { ExpectClosed(nullptr); }

TEST_P(FailClosedTest, InAsyncModeOnAStream) {
  cudasim_set_mode(1);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ExpectClosed(stream);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Doors, FailClosedTest, testing::ValuesIn(Doors()),
                         [](const testing::TestParamInfo<Door>& info) {
                           std::string name = info.param.name;
                           for (char& c : name) {
                             if (std::isalnum(c) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace cudasim
