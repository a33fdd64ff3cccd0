// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/ipc.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/memory.h"
#include "tests/simulator/cudasim/ordering.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

enum class Kind : uint32_t { kMemory = 1, kEvent = 2 };

struct Handle {
  static constexpr uint64_t kMagic = 0x3143504953445543;  // "CUDSIPC1"

  uint64_t magic = kMagic;
  Kind kind = Kind::kMemory;
  int32_t pid = 0;
  int32_t file = 0;  // descriptor in that process
  uint32_t slot = 0;
  ProcessToken token;
  uint64_t id = 0;
  uint64_t checksum = 0;

  uint64_t Checksum() const {
    uint64_t hash = 0xCBF29CE484222325u;
    for (const uint64_t word :
         {magic, uint64_t{static_cast<uint32_t>(kind)} << 32 | slot,
          uint64_t{static_cast<uint32_t>(pid)} << 32 |
              static_cast<uint32_t>(file),
          token.high, token.low, id}) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};
static_assert(sizeof(Handle) <= kIpcHandleBytes);

void Write(Handle handle, const SharedFile& file, void* out) {
  handle.pid = getpid();
  handle.file = file.fd();
  handle.token = OwnToken();
  handle.checksum = handle.Checksum();
  std::memset(out, 0, kIpcHandleBytes);
  std::memcpy(out, &handle, sizeof(handle));
}

// Checks everything that can be checked without looking at the owner.
Status Read(const void* from, Kind kind, Handle* handle) {
  if (from == nullptr) return kInvalidValue;
  std::memcpy(handle, from, sizeof(*handle));
  const uint32_t slots =
      kind == Kind::kMemory ? SharedHeader::kExtents : SharedHeader::kEvents;
  if (handle->magic != Handle::kMagic || handle->kind != kind ||
      handle->checksum != handle->Checksum() || handle->id == 0 ||
      handle->slot >= slots) {
    return kInvalidValue;
  }
  return handle->token == OwnToken() ? kInvalidContext : kOk;
}

// The owner's file. Opened anew each time: a process imports few files, and
// whoever keeps the result keeps it open.
Status OpenOwner(const Handle& handle, std::shared_ptr<SharedFile>* file) {
  const std::string process = "/proc/" + std::to_string(handle.pid);
  const std::string path = process + "/fd/" + std::to_string(handle.file);
  *file = SharedFile::Open(path);
  if (*file == nullptr) {
    if (access(process.c_str(), F_OK) == 0 && access(path.c_str(), R_OK) != 0 &&
        errno == EACCES) {
      std::fprintf(stderr,
                   "cudasim: %s may not be opened by this process: IPC needs "
                   "processes of the same user that may look at each other\n",
                   path.c_str());
      return kMapFailed;
    }
    return kInvalidHandle;
  }
  // Another process may have the number by now, and a file of its own.
  return (*file)->header().token == handle.token ? kOk : kInvalidHandle;
}

SharedEvent* SharedStateOf(const Event& event) {
  if (event.shared_file == nullptr) return nullptr;
  return &event.shared_file->header().events[event.shared_slot];
}

}  // namespace

Status IpcExportMemory(void* out, uint64_t address) {
  if (out == nullptr) return kInvalidValue;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const Mapping* mapping = sim.addresses.FindMapping(address, &start);
  if (mapping == nullptr || !mapping->extent->from_malloc) return kInvalidValue;
  Extent* extent = mapping->extent;
  const Status status = sim.extents.Export(extent);
  if (status != kOk) return status;
  Handle handle;
  handle.kind = Kind::kMemory;
  handle.slot = static_cast<uint32_t>(extent->exported_as);
  handle.id = extent->id;
  Write(handle, sim.extents.FileOf(*extent), out);
  return kOk;
}

Status IpcOpenMemory(const void* from, unsigned flags, uint64_t* address) {
  if (address == nullptr || flags != 1) return kInvalidValue;
  Handle handle;
  Status status = Read(from, Kind::kMemory, &handle);
  if (status != kOk) return status;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  std::shared_ptr<SharedFile> file;
  status = OpenOwner(handle, &file);
  if (status != kOk) return status;
  Extent* extent = nullptr;
  status = sim.extents.Import(file, handle.slot, handle.id, &extent);
  if (status != kOk) return status;
  const int device = ThisThread().device;
  if (extent->device != device &&
      !sim.peers.IsEnabled(device, extent->device)) {
    status = sim.peers.Enable(device, extent->device);
    if (status != kOk) {
      sim.extents.Release(extent->id);
      return status;
    }
  }
  // Open already: one mapping, and one reference for each further open.
  for (const auto& [start, mapping] : sim.addresses.mappings()) {
    if (mapping.extent != extent) continue;
    *address = start;
    return kOk;
  }
  extent->from_malloc = true;
  return sim.addresses.MapWhole(extent, address);
}

Status IpcCloseMemory(const char* name, uint64_t address) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto found = sim.addresses.mappings().find(address);
  if (found == sim.addresses.mappings().end()) return kInvalidValue;
  Extent* extent = found->second.extent;
  if (!extent->imported() || !extent->from_malloc) return kInvalidValue;
  if (extent->references > 0) return sim.extents.Release(extent->id);
  const uint64_t bytes = found->second.bytes;
  sim.CheckHolds(name, address, bytes, true, /*own=*/true);
  const std::vector<Segment> segments = sim.Segments(address, bytes);
  const Status status = sim.addresses.FreeMalloc(address, ThisCall(name));
  if (status == kOk) sim.ForgetRange(name, segments);
  return status;
}

Status IpcExportEvent(void* out, uint64_t event_handle) {
  if (out == nullptr) return kInvalidValue;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Event* event = sim.events.Find(event_handle);
  if (event == nullptr || (event->flags & kEventInterprocess) == 0 ||
      event->imported) {
    return kInvalidHandle;
  }
  if (event->shared_file == nullptr) {
    const std::shared_ptr<SharedFile>& file = sim.extents.file(event->device);
    const int slot = file->TakeEvent();
    if (slot < 0) return kOutOfMemory;
    event->shared_file = file;
    event->shared_slot = static_cast<uint32_t>(slot);
    event->shared_id = event_handle;
    SharedEvent* state = SharedStateOf(*event);
    state->records.store(event->recorded ? 1 : 0);
    state->id.store(event->shared_id);
  }
  Handle handle;
  handle.kind = Kind::kEvent;
  handle.slot = event->shared_slot;
  handle.id = event->shared_id;
  Write(handle, *event->shared_file, out);
  return kOk;
}

Status IpcOpenEvent(const void* from, uint64_t* event_handle) {
  if (event_handle == nullptr) return kInvalidValue;
  Handle handle;
  Status status = Read(from, Kind::kEvent, &handle);
  if (status != kOk) return status;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  std::shared_ptr<SharedFile> file;
  status = OpenOwner(handle, &file);
  if (status != kOk) return status;
  SharedHeader& header = file->header();
  if (header.events[handle.slot].id.load() != handle.id) return kInvalidHandle;
  if (header.device < 0 || header.device >= sim.config.devices) {
    return kInvalidDevice;
  }
  *event_handle = sim.events.Create(header.device,
                                    kEventDisableTiming | kEventInterprocess);
  Event* event = sim.events.Find(*event_handle);
  event->shared_file = file;
  event->shared_slot = handle.slot;
  event->shared_id = handle.id;
  event->imported = true;
  return kOk;
}

void CheckEventOwner(const char* what, const Event& event) {
  if (!event.imported) return;
  if (SharedStateOf(event)->id.load() == event.shared_id) return;
  Simulator::Get().violations.Add(
      kind::kUseAfterOwnersFree,
      std::string(what) + " uses an event of process " +
          std::to_string(event.shared_file->header().pid) +
          ", which has destroyed it; missing: an answer to that process "
          "before");
}

void NoteSharedRecord(const Event& event) {
  if (SharedEvent* state = SharedStateOf(event)) state->records.fetch_add(1);
}

Status ExportDescriptor(uint64_t handle, int* descriptor) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Extent* extent = sim.extents.Find(handle);
  if (extent == nullptr || descriptor == nullptr) return kInvalidValue;
  // Only what was created for it, and not what is another process's.
  if ((extent->handle_types & 1) == 0 || extent->from_malloc) {
    return kInvalidValue;
  }
  if (!extent->imported()) {
    const Status status = sim.extents.Export(extent);
    if (status != kOk) return status;
  }
  const int slot = extent->imported() ? static_cast<int>(extent->owners_slot)
                                      : extent->exported_as;
  *descriptor = sim.extents.FileOf(*extent).Export(slot);
  if (*descriptor >= 0) return kOk;
  std::fprintf(stderr, "cudasim: cuMemExportToShareableHandle: %s\n",
               std::strerror(errno));
  return kMapFailed;
}

Status ImportDescriptor(int descriptor, uint64_t* handle) {
  if (handle == nullptr || fcntl(descriptor, F_GETFD) < 0) return kInvalidValue;
  uint32_t slot = 0;
  const std::shared_ptr<SharedFile> file =
      SharedFile::OpenExported(descriptor, &slot);
  if (file == nullptr) return kInvalidValue;
  const uint64_t id = file->header().extents[slot].id.load();
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Extent* extent = nullptr;
  if (file->header().token == OwnToken()) {
    extent = sim.extents.ImportOwn(id);
    if (extent == nullptr) return kInvalidValue;
  } else {
    const Status status = sim.extents.Import(file, slot, id, &extent);
    if (status != kOk) {
      return status == kInvalidHandle ? kInvalidValue : status;
    }
  }
  *handle = extent->id;
  return kOk;
}

}  // namespace cudasim
