// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/cuda_api.h"

#include <dlfcn.h>

#include <atomic>
#include <initializer_list>
#include <string>

#include "allocator/base/mutex.h"

namespace stratalloc {
namespace {

// Opens what is already in the process; the driver may also be loaded fresh,
// because a CUDA runtime loads it lazily itself.
void* OpenLoaded(std::initializer_list<const char*> names, bool may_load) {
  for (const char* name : names) {
    if (void* lib = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return lib;
  }
  if (!may_load) return nullptr;
  for (const char* name : names) {
    if (void* lib = dlopen(name, RTLD_LAZY)) return lib;
  }
  return nullptr;
}

// A statically linked simulated device is found in the executable itself.
void* Find(void* library, const char* name) {
  if (library != nullptr) {
    if (void* symbol = dlsym(library, name)) return symbol;
  }
  return dlsym(RTLD_DEFAULT, name);
}

Status Resolve(CudaApi& api) {
  const bool in_executable = dlsym(RTLD_DEFAULT, "cuMemCreate") != nullptr &&
                             dlsym(RTLD_DEFAULT, "cudaMalloc") != nullptr;
  void* runtime = in_executable
                      ? nullptr
                      : OpenLoaded({"libcudart.so.13", "libcudart.so.12"},
                                   /*may_load=*/false);
  void* driver = in_executable ? nullptr : OpenLoaded({"libcuda.so.1"}, true);
  const char* missing = nullptr;
#define STRATALLOC_RESOLVE_R(name)                                       \
  api.name = reinterpret_cast<decltype(api.name)>(Find(runtime, #name)); \
  if (api.name == nullptr && missing == nullptr) missing = #name;
// cuda.h renames functions whose arguments changed (cuDeviceTotalMem_v2): the
// driver still has the old ones by their plain names.
#define STRATALLOC_TEXT_OF(name) #name
#define STRATALLOC_TEXT(name) STRATALLOC_TEXT_OF(name)
#define STRATALLOC_RESOLVE_D(name)                 \
  api.name = reinterpret_cast<decltype(api.name)>( \
      Find(driver, STRATALLOC_TEXT(name)));        \
  if (api.name == nullptr && missing == nullptr) missing = #name;
  STRATALLOC_RUNTIME_FUNCTIONS(STRATALLOC_RESOLVE_R)
  STRATALLOC_DRIVER_FUNCTIONS(STRATALLOC_RESOLVE_D)
#undef STRATALLOC_RESOLVE_R
#undef STRATALLOC_RESOLVE_D
#undef STRATALLOC_TEXT
#undef STRATALLOC_TEXT_OF
  if (missing != nullptr) {
    return Fail(ErrorCode::kUnsupported,
                std::string("no usable CUDA in this process: ") + missing +
                    " was not found. Import a CUDA build of torch on a "
                    "machine with a driver, or run under the simulated "
                    "device (stratalloc run --simulate 8GiB ...)");
  }
  return {};
}

}  // namespace

Result<const CudaApi*> CudaApi::Get() {
  static std::atomic<const CudaApi*> ready{nullptr};
  // acquire: pairs with the release below, the table is complete.
  if (const CudaApi* api = ready.load(std::memory_order_acquire)) return api;
  static Mutex mutex(LockRank::kInterner);
  MutexLock lock(mutex);
  if (const CudaApi* api = ready.load(std::memory_order_acquire)) return api;
  CudaApi* api = new CudaApi;  // lives as long as the process, on purpose
  if (Status status = Resolve(*api); !status) {
    delete api;
    return tl::unexpected(status.error());
  }
  ready.store(api, std::memory_order_release);
  return api;
}

Error CudaError(const CudaApi& api, const char* function, cudaError_t error) {
  // Clears a non-sticky error, so that torch does not find ours in its next
  // cudaGetLastError.
  api.cudaGetLastError();
  const ErrorCode code = error == cudaErrorMemoryAllocation
                             ? ErrorCode::kOutOfMemory
                             : ErrorCode::kDevice;
  return Error{code, std::string(function) +
                         " failed: " + api.cudaGetErrorName(error) + " (" +
                         api.cudaGetErrorString(error) + ")"};
}

Error DriverError(const CudaApi& api, const char* function, CUresult error) {
  const char* name = "unknown error";
  const char* text = "";
  api.cuGetErrorName(error, &name);
  api.cuGetErrorString(error, &text);
  const ErrorCode code = error == CUDA_ERROR_OUT_OF_MEMORY
                             ? ErrorCode::kOutOfMemory
                         : error == CUDA_ERROR_NOT_READY ? ErrorCode::kNotReady
                                                         : ErrorCode::kDevice;
  return Error{code, std::string(function) + " failed: " + (name ? name : "?") +
                         " (" + (text ? text : "") + ")"};
}

}  // namespace stratalloc
