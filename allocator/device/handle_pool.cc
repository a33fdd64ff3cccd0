// SPDX-License-Identifier: Apache-2.0
#include "allocator/device/handle_pool.h"

#include <unistd.h>

#include "allocator/base/check.h"

namespace stratalloc {

Result<PhysicalHandle> HandlePool::Take(Bytes bytes, Bytes limit) {
  // What is free here is cached, not used: the limit is for the rest. It may
  // have been lowered since.
  if (used_bytes() + bytes > limit) {
    return Fail(ErrorCode::kOutOfMemory,
                "the limit of " + FormatBytes(limit) + " is reached");
  }
  auto same = free_.find(bytes);
  if (same != free_.end() && !same->second.empty()) {
    const PhysicalHandle handle = same->second.back();
    same->second.pop_back();
    free_bytes_ -= bytes;
    return handle;
  }
  if (created_bytes_ + bytes > limit) ReleaseFree();
  Result<PhysicalHandle> handle = device_.CreateHandle(bytes);
  if (!handle && free_bytes_ > 0) {
    ReleaseFree();
    handle = device_.CreateHandle(bytes);
  }
  if (handle) created_bytes_ += bytes;
  return handle;
}

void HandlePool::Put(Bytes bytes, PhysicalHandle handle) {
  free_[bytes].push_back(handle);
  free_bytes_ += bytes;
}

Result<int> HandlePool::Descriptor(PhysicalHandle handle) {
  const auto known = descriptors_.find(handle);
  if (known != descriptors_.end()) return known->second;
  STRATALLOC_ASSIGN_OR_RETURN(const int descriptor,
                              device_.ExportHandle(handle));
  descriptors_.emplace(handle, descriptor);
  return descriptor;
}

Bytes HandlePool::ReleaseFree() {
  const Bytes released = free_bytes_;
  for (auto& [bytes, handles] : free_) {
    for (PhysicalHandle handle : handles) {
      if (auto open = descriptors_.find(handle); open != descriptors_.end()) {
        close(open->second);
        descriptors_.erase(open);
      }
      // The driver refuses only handles that are not ours or released twice.
      Status status = device_.ReleaseHandle(handle);
      STRATALLOC_CHECK(status.has_value(), status.error().message);
      created_bytes_ -= bytes;
    }
    handles.clear();
  }
  free_bytes_ = 0;
  return released;
}

}  // namespace stratalloc
