// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver, as lenient as a real one in a single answer: it takes a
// released handle. For the test of answers that are known of a driver.

#include <cuda.h>
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI
cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                       CUmemGenericAllocationHandle handle) {
  static const auto strict =
      reinterpret_cast<decltype(&cuMemGetAllocationPropertiesFromHandle)>(
          dlsym(RTLD_NEXT, "cuMemGetAllocationPropertiesFromHandle"));
  const CUresult answer = strict(prop, handle);
  return prop == nullptr ? answer : CUDA_SUCCESS;
}
