// SPDX-License-Identifier: Apache-2.0
#include "tests/system/stress/nest.h"

namespace stratalloc {
namespace {

template <typename F>
void ForEachHandle(DeviceAllocator& device, std::span<const Access> accesses,
                   F&& f) {
  HandleTable& table = device.table();
  for (const Access& access : accesses) {
    HandleRegion* region = table.RegionOf(access.address);
    if (region == nullptr) continue;  // unmanaged memory has none
    for (std::uint64_t i = region->IndexOf(access.address);
         i < region->count() &&
         region->AddressOf(i) < access.address + access.bytes;
         ++i) {
      f(HandleRef{region, i});
    }
  }
}

}  // namespace

Bytes Nest::AtMost(Bytes bytes) {
  constexpr Bytes kHandle = 2 * kMiB;
  return RoundUp(bytes, kHandle) + kHandle;
}

Bytes Nest::Needs(DeviceAllocator& device,
                  std::span<const Access> accesses) const {
  std::set<Address> more;
  Bytes bytes = 0;
  ForEachHandle(device, accesses, [&](HandleRef handle) {
    if (handles_.count(handle.address()) == 0 &&
        more.insert(handle.address()).second) {
      bytes += handle.bytes();
    }
  });
  return bytes;
}

void Nest::Add(DeviceAllocator& device, std::span<const Access> accesses) {
  bytes_ += Needs(device, accesses);
  ForEachHandle(device, accesses,
                [&](HandleRef handle) { handles_.insert(handle.address()); });
}

}  // namespace stratalloc
