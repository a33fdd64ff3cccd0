// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/import_cache.h"

#include "python_shim/bridge_api/ipc.h"
#include "python_shim/torch_bridge/base/bridge_error.h"

namespace stratalloc {

std::shared_ptr<void> ImportCache::Open(c10::DeviceIndex device,
                                        const std::string& handle) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found != entries_.end()) {
    if (std::shared_ptr<void> memory = found->second.memory.lock()) {
      return memory;
    }
    // Its last reference is just going: that one closes its own token, and
    // this opens the memory once more.
  }
  const auto [address, token] = OrThrow(core::OpenShared(device, handle));
  std::shared_ptr<void> memory(
      reinterpret_cast<void*>(address),
      [this, handle, token = token](void*) { Close(handle, token); });
  entries_[handle] = Entry{memory, token};
  return memory;
}

void ImportCache::Close(const std::string& handle, uint64_t token) {
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(handle);
    if (found != entries_.end() && found->second.token == token) {
      entries_.erase(found);
    }
  }
  // A failure has nobody to go to: a storage's end calls this.
  (void)core::CloseShared(token);
}

}  // namespace stratalloc
