// SPDX-License-Identifier: Apache-2.0
// Kernels and variables of embedded fatbins, and launches.
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/cuda/cuda_api.h"
#include "allocator/cuda/current_device.h"
#include "allocator/cuda/device.h"
#include "allocator/cuda/device_calls.h"

namespace stratalloc {
namespace {

// Modules are never unloaded, so each is loaded once per device, which must be
// current.
Result<CUmodule> ModuleOf(const CudaApi* api_, DeviceIndex device,
                          const void* fatbin) {
  struct Loaded {
    DeviceIndex device;
    const void* fatbin;
    CUmodule module;
  };
  static Mutex mutex(LockRank::kInterner);
  static auto* const all = new std::vector<Loaded>;
  MutexLock lock(mutex);
  for (const Loaded& loaded : *all) {
    if (loaded.device == device && loaded.fatbin == fatbin) {
      return loaded.module;
    }
  }
  CUmodule module = nullptr;
  STRATALLOC_DRIVER(api_->cuModuleLoadData(&module, fatbin),
                    "cuModuleLoadData");
  all->push_back({device, fatbin, module});
  return module;
}

}  // namespace

Result<void*> Device::LoadKernel(const void* fatbin, const char* name) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_ASSIGN_OR_RETURN(const CUmodule module,
                              ModuleOf(api_, index_, fatbin));
  CUfunction function = nullptr;
  STRATALLOC_DRIVER(api_->cuModuleGetFunction(&function, module, name),
                    "cuModuleGetFunction");
  return static_cast<void*>(function);
}

Result<Address> Device::LoadVariable(const void* fatbin,
                                     const char* name) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_ASSIGN_OR_RETURN(const CUmodule module,
                              ModuleOf(api_, index_, fatbin));
  CUdeviceptr address = 0;
  STRATALLOC_DRIVER(api_->cuModuleGetGlobal(&address, nullptr, module, name),
                    "cuModuleGetGlobal");
  return static_cast<Address>(address);
}

Status Device::Launch(void* kernel, unsigned blocks, unsigned threads,
                      StreamId stream, void** arguments) const {
  // A stream says of which device it is, but CUDA takes no launch from
  // elsewhere.
  STRATALLOC_ON_DEVICE(index_);
  STRATALLOC_DRIVER(
      api_->cuLaunchKernel(
          static_cast<CUfunction>(kernel), blocks, 1, 1, threads, 1, 1, 0,
          reinterpret_cast<CUstream>(Raw(stream)), arguments, nullptr),
      "cuLaunchKernel");
  return {};
}

}  // namespace stratalloc
