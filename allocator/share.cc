// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what other devices and other processes see of it.
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/ipc.h"

namespace stratalloc {
namespace {

// Files, sockets and pipes need the others: a program that cannot open its next
// file fails far from here.
std::size_t MostDescriptors() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return ~std::size_t{0};
  return files.rlim_cur == RLIM_INFINITY ? ~std::size_t{0} : files.rlim_cur / 4;
}

}  // namespace

Status DeviceAllocator::EnablePeer(DeviceIndex peer) {
  return waits_.WhenReady([&] {
    MutexLock lock(p_.mutex);
    return EnablePeerLocked(peer);
  });
}

Status DeviceAllocator::EnablePeerLocked(DeviceIndex peer) {
  if (peer == p_.device.index() || p_.pages.IsPeer(peer)) return {};
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (segment->unmanaged) continue;  // whoever made it shares it
    STRATALLOC_RETURN_IF_ERROR(
        p_.pages.GrantPeer(*segment->region, base, segment->end(), peer));
  }
  p_.pages.AddPeer(peer);
  return {};
}

std::vector<DeviceIndex> DeviceAllocator::peers() {
  MutexLock lock(p_.mutex);
  return p_.pages.peers();
}

Status DeviceAllocator::CheckDescriptorsLocked(const Block& block) {
  std::size_t needed = 0;
  ForEachHandleOf(block, [&](HandleRef handle, Bytes) {
    p_.mutex.AssertHeld();
    needed += !p_.pages.HasDescriptor(handle);
  });
  const std::size_t most = MostDescriptors();
  const std::size_t open = HandlePool::OpenDescriptors();
  if (open + needed <= most) return {};
  return Fail(ErrorCode::kUnsupported,
              "a tensor is not shared with another process: it needs " +
                  std::to_string(needed) + " file descriptors, " +
                  std::to_string(open) +
                  " are open for tensors that are shared already, and "
                  "stratalloc opens no more than a quarter of the process's "
                  "limit (" +
                  std::to_string(most) +
                  "). Raise the limit (ulimit -n), free shared tensors, or, "
                  "for tensors that are never evicted, set "
                  "expandable_segments:False before they are made");
}

void DeviceAllocator::CloseDescriptors() {
  MutexLock lock(p_.mutex);
  std::set<PhysicalHandle> shared;
  for (const auto& [base, segment] : p_.heap.segments()) {
    if (segment->unmanaged) continue;
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      if (!b->shared || !IsLive(b->state)) continue;
      ForEachHandleOf(*b, [&](HandleRef handle, Bytes) {
        if (handle.entry().physical != nullptr) {
          shared.insert(handle.entry().physical->handle);
        }
      });
    }
  }
  p_.pages.CloseDescriptors(shared);
}

Result<SharedBlock> DeviceAllocator::Share(Address address) {
  MutexLock lock(p_.mutex);
  Block* block = p_.heap.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound, "invalid device pointer");
  }
  if (block->segment->unmanaged) {
    // Its maker's memory, which only the driver can name to others.
    const Address base = block->segment->base;
    STRATALLOC_ASSIGN_OR_RETURN(std::string handle,
                                WriteMallocHandle(p_.device, base));
    return SharedBlock{std::move(handle), block->address - base};
  }
  std::vector<int> descriptors;
  Status status = CheckDescriptorsLocked(*block);
  ForEachHandleOf(*block, [&](HandleRef handle, Bytes) {
    p_.mutex.AssertHeld();
    if (!status) return;
    if (!IsOnDevice(handle.entry().state.load())) {
      status = Fail(ErrorCode::kInvalidArgument,
                    "a block is shared while its bytes are away");
      return;
    }
    Result<int> descriptor = p_.pages.Descriptor(handle);
    if (descriptor) {
      descriptors.push_back(*descriptor);
    } else {
      status = tl::unexpected(descriptor.error());
    }
  });
  STRATALLOC_RETURN_IF_ERROR(status);
  block->shared = block->streams_noted = true;  // its free takes the whole way
  // Once: nobody takes this pin back.
  if (block->pins.of(PinReason::kShared) == 0) {
    p_.pins.Pin(*block, PinReason::kShared);
  }
  const HandleRegion& region = *block->segment->region;
  return SharedBlock{WriteSharedHandle(region.handle_bytes, descriptors),
                     (block->address - region.base) % region.handle_bytes};
}

}  // namespace stratalloc
