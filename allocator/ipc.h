// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes, in the wire format of PyTorch's native
// allocator, so that either side may be native:
//
//   byte 0  version: 2 for PyTorch 2.11 and 2.12, 3 from 2.13 on
//   byte 1  'c' or 'e'
//   'c'     the 64 bytes of a cudaIpcMemHandle_t: one cudaMalloc
//   'e'     { int32 pid; 4 bytes; uint64 bytes of one handle;
//             uint64 number of handles } and of version 3 { int32 kind, 1 for
//             descriptors, 2 for fabric; 4 bytes of zeros }, then for each an
//             int32, a file descriptor of process `pid`, or the 64 bytes of a
//             fabric handle
//
// 64 bytes without a version are a 'c' of very old senders. What a receiver
// maps starts at the first handle; the sender says by which offset its block
// starts behind that. Equal bytes mean equal memory: receivers cache by them,
// so a physical handle keeps its descriptor, and the 4 bytes after the pid stay
// the same. Native ignores them, and sends what lies there. Ours are the nonce
// of DescriptorServer, or 0, and name the sender's socket together with the
// pid.
//
// Blocks of ours lie in handles of one size and are sent as 'e', segments from
// cudaMalloc as 'c'; both are received, in both versions. Settings say which
// version is sent (allocator/state/settings.h). Descriptors come from the
// sender's socket (DescriptorServer), which needs the same user, or root, and
// one network namespace. Where that fails pidfd_getfd takes them, which needs
// the right to trace the sender: the same user, Yama's ptrace_scope 0 or a
// parent that asks its child, no seccomp filter against it (Docker has one),
// and one pid namespace. A native receiver knows pidfd_getfd alone.
// DescriptorSource has the order's reasons.
#ifndef STRATALLOC_ALLOCATOR_IPC_H_
#define STRATALLOC_ALLOCATOR_IPC_H_

#include <string>
#include <string_view>
#include <vector>

#include "allocator/cuda/device.h"
#include "allocator/values/shared_block.h"

namespace stratalloc {

// The handle for memory in `descriptors`, of `handle_bytes` each.
std::string WriteSharedHandle(Bytes handle_bytes,
                              const std::vector<int>& descriptors);
// The handle for the cudaMalloc that holds `address`.
Result<std::string> WriteMallocHandle(const Device& device, Address address);

// Another process's memory, mapped here. A plain value: Close it once, when
// nothing uses the memory any more; the destructor does nothing, because at a
// process's end CUDA may be gone. Thread-safety: the caller's.
class ImportedMemory {
 public:
  // Maps what `handle` says on `device`, with access for `peers`. Only as much
  // address space is taken as is mapped. Fails with the texts of native;
  // nothing stays mapped then.
  static Result<ImportedMemory> Open(const Device& device,
                                     const std::vector<DeviceIndex>& peers,
                                     std::string_view handle);
  // Waits for the device, then unmaps.
  Status Close();
  // Access for one more device.
  Status Grant(DeviceIndex peer) const;

  Address address() const { return address_; }
  const Device& device() const { return device_; }

 private:
  explicit ImportedMemory(const Device& device) : device_(device) {}
  Status OpenHandles(const std::vector<DeviceIndex>& peers,
                     std::string_view payload, bool typed);
  Status Unmap();

  Device device_;
  Address address_ = 0;
  // Of 'e': the handles, mapped one after the other. Empty for 'c'.
  Bytes handle_bytes_ = 0;
  Bytes reserved_ = 0;
  std::vector<PhysicalHandle> handles_;
  std::size_t mapped_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_IPC_H_
