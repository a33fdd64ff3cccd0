// SPDX-License-Identifier: Apache-2.0
//
// The runtime's libraries of kernels.

#include <cuda_runtime_api.h>

#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/modules.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::Modules;

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaLibraryLoadData(cudaLibrary_t* library,
                                          const void* image, cudaJitOption*,
                                          void**, unsigned, cudaLibraryOption*,
                                          void**, unsigned) {
  CUDASIM_ENTER("cudaLibraryLoadData");
  return Answer(
      Modules::Get().Load(image, nullptr, reinterpret_cast<void**>(library)));
}

cudaError_t CUDARTAPI cudaLibraryLoadFromFile(cudaLibrary_t* library,
                                              const char* path, cudaJitOption*,
                                              void**, unsigned,
                                              cudaLibraryOption*, void**,
                                              unsigned) {
  CUDASIM_ENTER("cudaLibraryLoadFromFile");
  return Answer(Modules::Get().LoadFile(path, nullptr,
                                        reinterpret_cast<void**>(library)));
}

cudaError_t CUDARTAPI cudaLibraryUnload(cudaLibrary_t library) {
  CUDASIM_ENTER("cudaLibraryUnload", kBroken);
  return Answer(Modules::Get().Unload(library));
}

cudaError_t CUDARTAPI cudaLibraryGetKernel(cudaKernel_t* kernel,
                                           cudaLibrary_t library,
                                           const char* name) {
  CUDASIM_ENTER("cudaLibraryGetKernel");
  return Answer(
      Modules::Get().Kernel(library, name, reinterpret_cast<void**>(kernel)));
}

cudaError_t CUDARTAPI cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                      cudaFuncAttribute, int,
                                                      int device) {
  CUDASIM_ENTER("cudaKernelSetAttributeForDevice");
  if (device < 0 || device >= cudasim::Simulator::Get().config.devices) {
    return Answer(cudasim::kInvalidDevice);
  }
  return Answer(cudasim::Launches::Get().NameOf(kernel) != nullptr
                    ? cudasim::kOk
                    : cudasim::kInvalidHandle);
}

}  // extern "C"
#pragma GCC visibility pop
