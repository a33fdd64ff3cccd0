// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/nvml.h"

#include <dlfcn.h>

#include <type_traits>

#include "allocator/cuda/cuda_api.h"

namespace stratalloc {
namespace {

// Of nvml.h, whose numbers and layouts are fixed.
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
};

struct Nvml {
  int (*Init)() = nullptr;
  int (*HandleByPciBusId)(const char*, void**) = nullptr;
  int (*RunningProcesses)(void*, unsigned*, ProcessInfo*) = nullptr;
  bool ready = false;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(
          dlsym(library, name));
      return function != nullptr;
    };
    ready = find(Init, "nvmlInit_v2") &&
            find(HandleByPciBusId, "nvmlDeviceGetHandleByPciBusId_v2") &&
            find(RunningProcesses, "nvmlDeviceGetComputeRunningProcesses") &&
            Init() == kSuccess;
  }
};

}  // namespace

std::vector<ProcessMemory> ProcessesOn(DeviceIndex device) {
  static const Nvml nvml;  // never shut down: out of memory may come any time
  const Result<const CudaApi*> cuda = CudaApi::Get();
  if (!nvml.ready || !cuda) return {};
  char bus_id[32];
  if ((*cuda)->cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id),
                                     static_cast<int>(device)) != cudaSuccess) {
    (*cuda)->cudaGetLastError();
    return {};
  }
  void* handle = nullptr;
  if (nvml.HandleByPciBusId(bus_id, &handle) != kSuccess) return {};
  std::vector<ProcessInfo> found(8);
  auto count = static_cast<unsigned>(found.size());
  int answer = kInsufficientSize;
  // Processes may start between two calls, but not for ever.
  for (int i = 0; i < 4 && answer == kInsufficientSize; ++i) {
    if (i > 0) found.resize(count += 8);
    answer = nvml.RunningProcesses(handle, &count, found.data());
  }
  if (answer != kSuccess || count > found.size()) return {};
  std::vector<ProcessMemory> processes;
  for (unsigned i = 0; i < count; ++i) {
    if (found[i].used == kNotAvailable) continue;
    processes.push_back({found[i].pid, found[i].used});
  }
  return processes;
}

}  // namespace stratalloc
