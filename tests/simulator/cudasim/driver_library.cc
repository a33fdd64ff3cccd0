// SPDX-License-Identifier: Apache-2.0
//
// The driver's modules, libraries and their kernels. A kernel of a library and
// the function of a module are one token here.

#include <cuda.h>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/modules.h"
#include "tests/simulator/cudasim/simulator.h"
#include "tests/simulator/cudasim/variables.h"

using cudasim::Modules;

namespace {

constexpr auto kBroken = cudasim::Entry::kAllowedWhenBroken;

// A module is the current device's, a library no device's yet.
const cudasim::Card* CardFor(CUmodule*) { return &cudasim::CurrentCard(); }
const cudasim::Card* CardFor(CUlibrary*) { return nullptr; }

template <typename Handle>
CUresult Load(const void* image, Handle* handle) {
  return CUDASIM_ANSWER(Modules::Get().Load(image, CardFor(handle),
                                            reinterpret_cast<void**>(handle)));
}

template <typename Handle>
CUresult LoadFile(const char* path, Handle* handle) {
  return CUDASIM_ANSWER(Modules::Get().LoadFile(
      path, CardFor(handle), reinterpret_cast<void**>(handle)));
}

template <typename Function>
CUresult FindKernel(void* module, const char* name, Function* function) {
  return CUDASIM_ANSWER(
      Modules::Get().Kernel(module, name, reinterpret_cast<void**>(function)));
}

CUresult KnownKernel(CUkernel kernel) {
  return cudasim::Launches::Get().NameOf(kernel) != nullptr
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
  CUDASIM_ENTER("cuModuleLoad");
  return LoadFile(path, module);
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  CUDASIM_ENTER("cuModuleLoadData");
  return Load(image, module);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image,
                                    unsigned, CUjit_option*, void**) {
  CUDASIM_ENTER("cuModuleLoadDataEx");
  return Load(image, module);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  CUDASIM_ENTER("cuModuleLoadFatBinary");
  return Load(image, module);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  CUDASIM_ENTER("cuModuleUnload", kBroken);
  return CUDASIM_ANSWER(Modules::Get().Unload(module));
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module,
                                     const char* name) {
  CUDASIM_ENTER("cuModuleGetFunction");
  return FindKernel(module, name, function);
}

CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes,
                                   CUmodule module, const char* name) {
  CUDASIM_ENTER("cuModuleGetGlobal");
  CUDASIM_NEEDS_CONTEXT();
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  cudasim::Simulator& sim = cudasim::Simulator::Get();
  uint64_t found = 0;
  size_t size = 0;
  {
    cudasim::Lock lock(sim.mu);
    const cudasim::Status status = cudasim::Variables::Get().LocateOfModule(
        module, name, cudasim::ThisThread().device, &found, &size);
    if (status != cudasim::kOk && status != cudasim::kNotFound) {
      return CUDASIM_ANSWER(status);
    }
  }
  // Nobody has said that there is such a variable.
  if (found == 0) {
    return CUDASIM_ANSWER(cudasim::Unsupported("cuModuleGetGlobal"));
  }
  if (address != nullptr) *address = found;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  CUDASIM_ENTER("cuModuleGetLoadingMode");
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* image,
                                   CUjit_option*, void**, unsigned,
                                   CUlibraryOption*, void**, unsigned) {
  CUDASIM_ENTER("cuLibraryLoadData");
  return Load(image, library);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                       CUjit_option*, void**, unsigned,
                                       CUlibraryOption*, void**, unsigned) {
  CUDASIM_ENTER("cuLibraryLoadFromFile");
  return LoadFile(path, library);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  CUDASIM_ENTER("cuLibraryUnload", kBroken);
  return CUDASIM_ANSWER(Modules::Get().Unload(library));
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library,
                                    const char* name) {
  CUDASIM_ENTER("cuLibraryGetKernel");
  return FindKernel(library, name, kernel);
}

// A library's module is the library: both only look kernels up.
CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  CUDASIM_ENTER("cuLibraryGetModule");
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  CUDASIM_ENTER("cuKernelGetFunction");
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return KnownKernel(kernel);
}

CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel kernel) {
  CUDASIM_ENTER("cuKernelGetName");
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = cudasim::Launches::Get().NameOf(kernel);
  return KnownKernel(kernel);
}

CUresult CUDAAPI cuKernelGetAttribute(int* value,
                                      CUfunction_attribute attribute,
                                      CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(value, attribute,
                            reinterpret_cast<CUfunction>(kernel));
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute, int,
                                      CUkernel kernel, CUdevice) {
  CUDASIM_ENTER("cuKernelSetAttribute");
  return KnownKernel(kernel);
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache,
                                        CUdevice) {
  CUDASIM_ENTER("cuKernelSetCacheConfig");
  return KnownKernel(kernel);
}

}  // extern "C"
#pragma GCC visibility pop
