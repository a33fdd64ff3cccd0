// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what other devices and other processes see of it.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/ipc.h"

namespace stratalloc {

std::vector<DeviceIndex> DeviceAllocator::peers() {
  MutexLock lock(mutex_);
  return peers_;
}

Result<SharedBlock> DeviceAllocator::Share(Address address) {
  MutexLock lock(mutex_);
  Block* block = blocks_.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound, "invalid device pointer");
  }
  if (block->segment->plain) {
    // Its maker's memory, which only the driver can name to others.
    const Address base = block->segment->base;
    STRATALLOC_ASSIGN_OR_RETURN(std::string handle,
                                WriteMallocHandle(device_, base));
    return SharedBlock{std::move(handle), block->address - base};
  }
  std::vector<int> descriptors;
  Status status;
  ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
    mutex_.AssertHeld();
    if (!status) return;
    if (!IsOnDevice(handle.entry().state.load())) {
      status = Fail(ErrorCode::kInvalidArgument,
                    "a block is shared while its bytes are away");
      return;
    }
    Result<int> descriptor = physical_.Descriptor(*handle.entry().physical);
    if (descriptor) {
      descriptors.push_back(*descriptor);
    } else {
      status = tl::unexpected(descriptor.error());
    }
  });
  STRATALLOC_RETURN_IF_ERROR(status);
  // Once: nobody takes this pin back.
  if (block->pins.of(PinReason::kShared) == 0) {
    PinBlockLocked(block, PinReason::kShared);
  }
  const HandleRegion& region = *block->segment->region;
  return SharedBlock{WriteSharedHandle(region.handle_bytes, descriptors),
                     (block->address - region.base) % region.handle_bytes};
}

}  // namespace stratalloc
