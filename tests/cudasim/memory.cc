// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/memory.h"

#include "tests/cudasim/simulator.h"

namespace cudasim {

Status FreeDevice(const char* name, uint64_t address) {
  if (address == 0) return kOk;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (!sim.addresses.IsMalloc(address)) return kInvalidValue;
  const Mapping mapping = sim.addresses.mappings().at(address);
  sim.clock.WaitUntil(sim.clock.EndOfDevice(mapping.extent->device));
  sim.streams.Synchronize(lock, sim.streams.DevicePast(mapping.extent->device));
  sim.CheckHolds(name, address, mapping.bytes, true, /*own=*/true);
  // Another thread may have freed it while the lock was released.
  const Status status = sim.addresses.FreeMalloc(address);
  if (status == kOk) sim.ForgetRange(name, address, mapping.bytes);
  return status;
}

Status AllocateHost(void** pointer, size_t bytes, unsigned flags) {
  if (pointer == nullptr) return kInvalidValue;
  if (bytes == 0) {
    *pointer = nullptr;
    return kOk;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t address = 0;
  const Status status = sim.host.Allocate(bytes, flags, &address);
  if (status == kOk) *pointer = reinterpret_cast<void*>(address);
  return status;
}

Status FreeHost(const char* name, void* pointer) {
  if (pointer == nullptr) return kOk;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  auto found = sim.host.ranges().find(address);
  if (found == sim.host.ranges().end() || found->second.mapped_bytes == 0) {
    return kInvalidValue;
  }
  sim.ForgetRange(name, address, found->second.bytes);
  // A copy in flight would fault where a device corrupts: run it to its end,
  // the violation is noted.
  for (int device = 0; device < sim.config.devices; ++device) {
    sim.streams.Execute(lock, sim.streams.DevicePast(device));
  }
  // An eager copy of another thread may be moving bytes outside the lock.
  std::unique_lock<std::shared_mutex> gate(sim.bytes_gate);
  return sim.host.Free(address);
}

Status UnregisterHost(const char* name, void* pointer) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  auto found = sim.host.ranges().find(address);
  if (found == sim.host.ranges().end() || found->second.mapped_bytes != 0) {
    return kHostMemoryNotRegistered;
  }
  sim.ForgetRange(name, address, found->second.bytes);
  for (int device = 0; device < sim.config.devices; ++device) {
    sim.streams.Execute(lock, sim.streams.DevicePast(device));
  }
  return sim.host.Unregister(address);
}

PointerInfo DescribePointer(uint64_t address) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  PointerInfo info;
  if (const Mapping* mapping =
          sim.addresses.FindMapping(address, &info.start)) {
    const bool on_device = mapping->extent->location == Location::kDevice;
    info.kind = on_device ? PointerKind::kDevice : PointerKind::kPinnedHost;
    info.device = on_device ? mapping->extent->device : ThisThread().device;
    info.bytes = mapping->bytes;
    info.host_readable = mapping->host;
  } else if (const HostRange* range = sim.host.Find(address, &info.start)) {
    info.kind = PointerKind::kPinnedHost;
    info.device = ThisThread().device;
    info.bytes = range->bytes;
    info.registered = range->mapped_bytes == 0;
    info.host_readable = true;
  }
  return info;
}

}  // namespace cudasim
