// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_IMPORT_CACHE_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_IMPORT_CACHE_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "allocator/base/mutex.h"

namespace stratalloc {

// Memory of other processes that is mapped here, by the bytes it came under:
// several storages may lie in one, and CUDA opens a cudaMalloc of another
// process once only. The last reference closes it, which waits for the device.
//
// Thread-safety: all methods, any thread. The lock is held while memory is
// mapped, so that it is mapped once; not while it is closed.
// Lifetime: part of the allocator object, never destroyed. What is open when
// the process ends stays open: CUDA may be gone by then.
class ImportCache {
 public:
  // Throws c10::Error with native's text.
  std::shared_ptr<void> Open(c10::DeviceIndex device, const std::string& handle)
      EXCLUDES(mutex_);

 private:
  struct Entry {
    std::weak_ptr<void> memory;
    uint64_t token = 0;
  };
  void Close(const std::string& handle, uint64_t token) EXCLUDES(mutex_);

  Mutex mutex_{LockRank::kRegistry};
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_IMPORT_CACHE_H_
