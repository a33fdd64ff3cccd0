// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/memory.h"

#include <cstdio>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Of the mapping there; -1 if there is none, or it is memory of the host.
int DeviceAt(const Simulator& sim, uint64_t address) {
  uint64_t start = 0;
  const Mapping* mapping = sim.addresses.FindMapping(address, &start);
  return mapping != nullptr && mapping->extent->location == Location::kDevice
             ? mapping->extent->device
             : -1;
}

// Pinning takes the time that its pages take.
void ChargePinning(Simulator& sim, size_t bytes) {
  const Card& card = CurrentCard();
  sim.ChargeExtra(card, card.pin_ns_per_gib, static_cast<double>(bytes) / kGiB);
}

// "cudaFree (call 3)", inside that call.
void ReportFreedTwice(Simulator& sim, const char* name, uint64_t address) {
  const std::string before = sim.host.FreedBy(address);
  if (before.empty()) return;
  char text[40];
  std::snprintf(text, sizeof(text), "host memory at 0x%llx",
                static_cast<unsigned long long>(address));
  sim.violations.Add(kind::kDoubleRelease, ThisCall(name) + " gives " + text +
                                               " back again, which " + before +
                                               " had given back");
}

}  // namespace

std::string ThisCall(const char* name) {
  return std::string(name) + " (call " +
         std::to_string(ApiFunction::Named(name).calls()) + ")";
}

Status UnmapRange(const char* name, uint64_t address, uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (sim.addresses.IsMalloc(address)) return kInvalidValue;
  const int device = DeviceAt(sim, address);
  if (device >= 0 && sim.unmap_waits.load(std::memory_order_relaxed)) {
    sim.clock.WaitUntil(sim.clock.EndOfDevice(device));
    sim.streams.Synchronize(lock, sim.streams.DevicePast(device));
  }
  sim.CheckHolds(name, address, bytes, true, /*own=*/true);
  uint64_t start = 0;
  if (const Unmapping* gone = sim.addresses.FindUnmapping(address, &start);
      gone != nullptr && start == address) {
    sim.violations.Add(kind::kDoubleRelease,
                       ThisCall(name) + " takes " +
                           sim.BlockText(address, bytes) +
                           " away again, which " + gone->by +
                           " had taken; missing: a cuMemMap between the two");
  }
  const std::vector<Segment> segments = sim.Segments(address, bytes);
  const long mappings = sim.addresses.CountMappings(address, bytes);
  const Status status = sim.addresses.Unmap(address, bytes, ThisCall(name));
  if (status != kOk) return status;
  sim.ForgetRange(name, segments);
  if (device >= 0) {
    const Card& card = CardOf(device);
    sim.ChargeExtra(card, card.unmap_ns, static_cast<double>(mappings));
  }
  return status;
}

Status ReleaseHandle(const char* name, uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const Status status = sim.extents.Release(handle);
  const uint64_t call = ApiFunction::Named(name).calls();
  if (status == kOk) {
    if (sim.extents.Find(handle) == nullptr) {
      sim.extents.NoteReleased(handle, call);
    }
    return status;
  }
  if (const uint64_t before = sim.extents.ReleasedBy(handle); before != 0) {
    char text[40];
    std::snprintf(text, sizeof(text), "handle 0x%llx",
                  static_cast<unsigned long long>(handle));
    sim.violations.Add(
        kind::kDoubleRelease,
        ThisCall(name) + " gives " + text + " back, whose last reference " +
            name + " (call " + std::to_string(before) +
            ") had given back; missing: a cuMemRetainAllocationHandle between "
            "the two");
  }
  return status;
}

Status FreeDevice(const char* name, uint64_t address) {
  if (address == 0) return kOk;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const Status status = sim.captures.Unsafe(); status != kOk) {
    return status;
  }
  uint64_t block = 0;
  uint64_t block_bytes = 0;
  Pool* pool = nullptr;
  if (sim.pools.FindBlock(address, &block, &block_bytes, &pool)) {
    const int device = pool->device;
    if (block != address) return kInvalidValue;
    sim.clock.WaitUntil(sim.clock.EndOfDevice(device));
    sim.streams.Synchronize(lock, sim.streams.DevicePast(device));
    sim.CheckHolds(name, address, block_bytes, true, /*own=*/true);
    return sim.pools.Free(address, VectorClock(), 0);
  }
  if (!sim.addresses.IsMalloc(address)) {
    uint64_t start = 0;
    const Unmapping* gone = sim.addresses.FindUnmapping(address, &start);
    if (gone != nullptr && start == address &&
        gone->by.find("Free") != std::string::npos) {
      sim.violations.Add(kind::kDoubleRelease,
                         ThisCall(name) + " frees " +
                             sim.BlockText(address, gone->bytes) +
                             " again, which " + gone->by +
                             " had freed; missing: an allocation between the "
                             "two");
    }
    return kInvalidValue;
  }
  // Memory of another process is closed (cudaIpcCloseMemHandle), not freed.
  if (sim.addresses.mappings().at(address).extent->imported()) {
    return kInvalidValue;
  }
  const Mapping mapping = sim.addresses.mappings().at(address);
  if (mapping.extent->of_module || mapping.extent->pooled) return kInvalidValue;
  sim.clock.WaitUntil(sim.clock.EndOfDevice(mapping.extent->device));
  sim.streams.Synchronize(lock, sim.streams.DevicePast(mapping.extent->device));
  sim.CheckHolds(name, address, mapping.bytes, true, /*own=*/true);
  const std::vector<Segment> segments = sim.Segments(address, mapping.bytes);
  if (sim.extents.IsHeldElsewhere(*mapping.extent)) {
    const int32_t user = sim.extents.FileOf(*mapping.extent)
                             .header()
                             .extents[mapping.extent->exported_as]
                             .last_opened_by.load();
    sim.violations.Add(
        kind::kFreeWhileShared,
        ThisCall(name) + " frees " + sim.BlockText(address, mapping.bytes) +
            ", which process " + std::to_string(user) +
            " has open; missing: its cudaIpcCloseMemHandle before the call");
  }
  // Another thread may have freed it while the lock was released.
  const Status status = sim.addresses.FreeMalloc(address, ThisCall(name));
  if (status == kOk) sim.ForgetRange(name, segments);
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
  if (const Status unsafe = sim.captures.Unsafe(); unsafe != kOk) {
    return unsafe;
  }
  if (!sim.pressure.CanPin(bytes, sim.host, sim.extents)) return kOutOfMemory;
  uint64_t address = 0;
  const Status status = sim.host.Allocate(bytes, flags, &address,
                                          /*reserve=*/!sim.extents.phantom());
  if (status != kOk) return status;
  *pointer = reinterpret_cast<void*>(address);
  ChargePinning(sim, bytes);
  return status;
}

Status RegisterHost(void* pointer, size_t bytes, unsigned flags) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const Status status = sim.captures.Unsafe(); status != kOk) {
    return status;
  }
  if (!sim.pressure.CanPin(bytes, sim.host, sim.extents)) return kOutOfMemory;
  const Status status =
      sim.host.Register(reinterpret_cast<uint64_t>(pointer), bytes, flags);
  if (status == kOk) ChargePinning(sim, bytes);
  return status;
}

Status FreeHost(const char* name, void* pointer) {
  if (pointer == nullptr) return kOk;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const Status status = sim.captures.Unsafe(); status != kOk) {
    return status;
  }
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  auto found = sim.host.ranges().find(address);
  if (found == sim.host.ranges().end() || found->second.mapped_bytes == 0) {
    ReportFreedTwice(sim, name, address);
    return kInvalidValue;
  }
  sim.ForgetRange(name, sim.Segments(address, found->second.bytes));
  // A copy in flight would fault where a device corrupts: run it to its end,
  // the violation is noted.
  for (int device = 0; device < sim.config.devices; ++device) {
    sim.streams.Execute(lock, sim.streams.DevicePast(device));
  }
  // An eager copy of another thread may be moving bytes outside the lock.
  std::unique_lock<std::shared_mutex> gate(sim.bytes_gate);
  return sim.host.Free(address, ThisCall(name));
}

Status UnregisterHost(const char* name, void* pointer) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const Status status = sim.captures.Unsafe(); status != kOk) {
    return status;
  }
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (const Status status = sim.host.Registered(address); status != kOk) {
    ReportFreedTwice(sim, name, address);
    return status;
  }
  const auto found = sim.host.ranges().find(address);
  sim.ForgetRange(name, sim.Segments(address, found->second.bytes));
  for (int device = 0; device < sim.config.devices; ++device) {
    sim.streams.Execute(lock, sim.streams.DevicePast(device));
  }
  return sim.host.Unregister(address, ThisCall(name));
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
    info.handle_types = mapping->extent->handle_types;
    info.ipc_capable =
        mapping->extent->from_malloc && !mapping->extent->imported();
    Pool* pool = nullptr;
    if (mapping->extent->pooled) {
      (void)sim.pools.FindBlock(address, &info.start, &info.bytes, &pool);
    }
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
