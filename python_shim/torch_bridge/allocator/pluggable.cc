// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/pluggable.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstring>
#include <typeinfo>

#include "python_shim/bridge_api/blocks.h"
#include "python_shim/bridge_api/devices.h"
#include "python_shim/torch_bridge/allocator/install.h"
#include "python_shim/torch_bridge/allocator/torch_allocator.h"
#include "python_shim/torch_bridge/base/conversions.h"
#include "python_shim/torch_bridge/base/entry_point.h"

namespace stratalloc {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

// Compared by name: a derived or foreign plugin is somebody else's.
constexpr char kPluggableType[] =
    "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";

// Reads the protected member that says which functions a plugin is made of.
struct Functions : CUDAPluggableAllocator {
  using Malloc = void* (*)(size_t, int, cudaStream_t);
  static bool AreOurs(CUDAAllocator* allocator) {
    if (std::strcmp(typeid(*allocator).name(), kPluggableType) != 0) {
      return false;
    }
    auto& plugin = static_cast<CUDAPluggableAllocator&>(*allocator);
    const Malloc* malloc = (plugin.*(&Functions::alloc_fn_)).target<Malloc>();
    return malloc != nullptr && *malloc == &stratalloc_malloc;
  }
};

// True if the caller was the installed plugin, which our allocator has now
// replaced. No lock: of two first mallocs at once both may do all of it.
bool UpgradeInstalledPlugin() {
  if (IsCurrentAllocator()) return false;
  if (!Functions::AreOurs(c10::cuda::CUDACachingAllocator::get())) return false;
  BridgeAllocator()->init(c10::cuda::device_count());
  SwapInAllocator();
  return true;
}

}  // namespace
}  // namespace stratalloc

using stratalloc::BridgeAllocator;

void* stratalloc_malloc(size_t size, int device, cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  if (stratalloc::UpgradeInstalledPlugin()) {
    return BridgeAllocator()->raw_alloc_with_stream(size, stream);
  }
  void* ptr = nullptr;
  stratalloc::core::UncachedMalloc(size, &ptr);
  return ptr;
}

void stratalloc_free(void* ptr, size_t, int, cudaStream_t) {
  if (stratalloc::core::Owns(stratalloc::ToAddress(ptr))) {
    BridgeAllocator()->raw_delete(ptr);
  } else {
    stratalloc::core::UncachedFree(ptr);
  }
}

void stratalloc_pluggable_init(int device_count) {
  // createCustomAllocator() calls init(0) when the plugin is made.
  if (device_count <= 0) return;
  stratalloc::SwapInAllocator();
  BridgeAllocator()->init(device_count);
}

int stratalloc_torch_upgrade_plugin(char* message, int bytes) {
  return stratalloc::RunEntryPoint(
      message, bytes, [] { stratalloc::UpgradeInstalledPlugin(); });
}
