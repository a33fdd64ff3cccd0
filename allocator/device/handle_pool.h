// SPDX-License-Identifier: Apache-2.0
// Free physical handles of one device, by size, ready to be mapped anywhere.
// Creating and releasing dominates the cost of mapping, so a handle that was
// unmapped is kept for the next map.
//
// Thread-safety: the caller holds the device lock.
// Invariant: created = mapped elsewhere + free here, in bytes.
// Fails: kOutOfMemory when the limit or the driver has no room.
#ifndef STRATALLOC_ALLOCATOR_DEVICE_HANDLE_POOL_H_
#define STRATALLOC_ALLOCATOR_DEVICE_HANDLE_POOL_H_

#include <map>
#include <vector>

#include "allocator/device/device.h"

namespace stratalloc {

class HandlePool {
 public:
  explicit HandlePool(Device device) : device_(device) {}

  // A recycled handle, or a new one, while used_bytes() stays within `limit`.
  // For a new one free handles of other sizes are released where the created
  // bytes would pass the limit.
  Result<PhysicalHandle> Take(Bytes bytes, Bytes limit);
  // Keeps a handle that is mapped nowhere. Never fails.
  void Put(Bytes bytes, PhysicalHandle handle);
  // The handle's file descriptor for other processes, made once and closed
  // when the handle goes back to the driver: the same memory always travels
  // under the same number. Kept here because it must end with the handle.
  Result<int> Descriptor(PhysicalHandle handle);
  // Gives every free handle back to the driver; returns the bytes.
  Bytes ReleaseFree();

  Bytes created_bytes() const { return created_bytes_; }
  Bytes free_bytes() const { return free_bytes_; }
  // Mapped, or about to be.
  Bytes used_bytes() const { return created_bytes_ - free_bytes_; }

 private:
  Device device_;
  std::map<Bytes, std::vector<PhysicalHandle>> free_;
  std::map<PhysicalHandle, int> descriptors_;
  Bytes created_bytes_ = 0;
  Bytes free_bytes_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DEVICE_HANDLE_POOL_H_
