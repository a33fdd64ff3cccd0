// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/handle_probe.h"

#include <string>
#include <utility>

namespace stratalloc {
namespace {

// A driver that is not ready is asked again at once: at its opening a device
// has hardly any work of ours.
constexpr int kTries = 100;

bool IsUndecided(const Status& status) {
  return !status && (status.error().code == ErrorCode::kOutOfMemory ||
                     status.error().code == ErrorCode::kNotReady);
}

// Makes, maps and grants one handle at `address`, and takes all of it back.
Status Try(const Device& device, Address address) {
  const Bytes bytes = device.granularity();
  STRATALLOC_ASSIGN_OR_RETURN(const PhysicalHandle handle,
                              device.CreateHandle(bytes));
  Status status = device.Map(address, bytes, handle);
  if (status) {
    for (int i = 0; i < kTries; ++i) {
      status = device.GrantAccess(address, bytes, {});
      if (status || status.error().code != ErrorCode::kNotReady) break;
    }
    // What fails here costs 2 MiB; the next mapping there would say so.
    if (Status unmapped = device.Unmap(address, bytes); !unmapped && status) {
      status = unmapped;
    }
  }
  if (Status released = device.ReleaseHandle(handle); !released && status) {
    status = released;
  }
  return status;
}

}  // namespace

Device ProbeHandles(const Device& device) {
  if (!device.has_virtual_memory()) return device;
  const Result<Address> address = device.ReserveAddress(device.granularity());
  if (!address) {
    return device.WithoutVirtualMemory("it reserves no addresses: " +
                                       address.error().message);
  }
  const bool rdma = device.SaysRdma();
  std::string why;
  const auto probe = [&]() -> Device {
    for (const HandleKind kind :
         {HandleKind{true, true}, HandleKind{true, false},
          HandleKind{false, true}, HandleKind{}}) {
      if (kind.rdma && !rdma) continue;
      const Device made = device.WithHandles(kind, why);
      const Status tried = Try(made, *address);
      if (tried) return made;
      if (IsUndecided(tried)) {
        return device.WithHandles(
            {}, "that could not be tried when the device was opened: " +
                    tried.error().message);
      }
      // Of the last kind that could be exported.
      if (kind.exportable) why = tried.error().message;
      if (!kind.exportable && !kind.rdma) {
        return device.WithoutVirtualMemory("it maps no memory: " +
                                           tried.error().message);
      }
    }
    return device;
  };
  Device probed = probe();
  (void)device.FreeAddress(*address, device.granularity());
  return probed;
}

}  // namespace stratalloc
