// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/extents.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/simulator/cudasim/arena.h"

namespace cudasim {

Extents::Extents(int devices, bool phantom) : phantom_(phantom) {
  memory_.resize(devices);
  next_offset_.assign(devices + 1, SharedFile::kFirstOffset);
  OpenFiles();
}

void Extents::OpenFiles() {
  files_.clear();
  for (int device = 0; device < devices(); ++device) {
    files_.push_back(
        SharedFile::Create("device-" + std::to_string(device), device));
  }
  files_.push_back(SharedFile::Create("host", -1));
}

Status Extents::Create(Location location, int device, uint64_t bytes,
                       Extent** out) {
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  if (location == Location::kDevice && (device < 0 || device >= devices())) {
    return kInvalidDevice;
  }
  Settle();
  size_t file = files_.size() - 1;
  if (location == Location::kDevice) {
    DeviceMemory& memory = memory_[device];
    if (bytes > memory.Free()) return kOutOfMemory;
    memory.used += bytes;
    memory.peak = std::max(memory.peak, memory.used);
    file = device;
  } else if (location != Location::kHost && location != Location::kHostNuma) {
    return kInvalidValue;
  }
  const bool has_bytes = !phantom_ || location != Location::kDevice;
  if (has_bytes && next_offset_[file] + bytes > SharedFile::kSize)
    return kOutOfMemory;
  Extent extent;
  extent.id = next_id_++;
  extent.location = location;
  extent.device = device;
  extent.offset = next_offset_[file];
  extent.bytes = bytes;
  extent.line = next_line_;
  next_line_ += bytes;
  extent.references = 1;
  next_offset_[file] += bytes;
  if (location != Location::kDevice) host_bytes_ += bytes;
  *out = &live_.emplace(extent.id, extent).first->second;
  return kOk;
}

Status Extents::CreateForModule(uint64_t bytes, Extent** out) {
  const Status status = Create(Location::kHost, 0, bytes, out);
  if (status != kOk) return status;
  (*out)->of_module = true;
  host_bytes_ -= bytes;
  return kOk;
}

Extent* Extents::Find(uint64_t id) {
  auto found = live_.find(id);
  if (found == live_.end() || found->second.references == 0) return nullptr;
  return &found->second;
}

Status Extents::Release(uint64_t id) {
  Extent* extent = Find(id);
  if (extent == nullptr) return kInvalidValue;
  --extent->references;
  FreeIfUnused(extent);
  return kOk;
}

uint64_t Extents::ReleasedBy(uint64_t id) const {
  auto found = released_.find(id);
  return found == released_.end() ? 0 : found->second;
}

void Extents::NoteReleased(uint64_t id, uint64_t call) {
  // Enough to recognise a mistake; ids never come back.
  if (released_.size() > 65536) released_.clear();
  released_[id] = call;
}

void Extents::DropMapping(Extent* extent) {
  --extent->mappings;
  FreeIfUnused(extent);
}

size_t Extents::FileIndex(const Extent& extent) const {
  return extent.location == Location::kDevice
             ? static_cast<size_t>(extent.device)
             : files_.size() - 1;
}

const SharedFile& Extents::FileOf(const Extent& extent) const {
  return extent.imported() ? *extent.imported_from : *files_[FileIndex(extent)];
}

int Extents::File(const Extent& extent) const { return FileOf(extent).fd(); }

Status Extents::Export(Extent* extent) {
  if (extent->imported()) return kInvalidValue;
  if (IsPhantom(*extent)) return kNotSupported;  // it has no bytes to share
  if (extent->exported_as >= 0) return kOk;
  SharedFile& file = *files_[FileIndex(*extent)];
  const int slot = file.TakeExtent();
  if (slot < 0) return kOutOfMemory;
  SharedExtent& entry = file.header().extents[slot];
  entry.offset = extent->offset;
  entry.bytes = extent->bytes;
  entry.location = static_cast<int32_t>(extent->location);
  entry.device = extent->device;
  entry.handle_types = extent->handle_types;
  entry.rdma_capable = extent->rdma_capable ? 1 : 0;
  entry.last_opened_by.store(0);
  entry.id.store(extent->id);
  extent->exported_as = slot;
  return kOk;
}

bool Extents::IsHeldElsewhere(const Extent& extent) const {
  return !extent.imported() && extent.exported_as >= 0 &&
         FileOf(extent).IsHeld(extent.offset, extent.bytes);
}

Status Extents::Import(std::shared_ptr<SharedFile> file, uint32_t slot,
                       uint64_t id, Extent** out) {
  if (phantom_) return kNotSupported;
  std::weak_ptr<SharedFile>& opened =
      owners_[{file->header().token, file->header().device}];
  if (std::shared_ptr<SharedFile> same = opened.lock()) {
    file = std::move(same);
  } else {
    opened = file;
  }
  SharedExtent& entry = file->header().extents[slot];
  const std::pair<ProcessToken, uint64_t> key{file->header().token, id};
  if (auto known = imported_.find(key); known != imported_.end()) {
    Extent& extent = live_.at(known->second);
    if (extent.OwnerFreedIt()) return kInvalidHandle;
    ++extent.references;
    *out = &extent;
    return kOk;
  }
  // Held first and looked at then: the owner clears the entry first and looks
  // for holders then, so one of the two sees the other.
  const uint64_t offset = entry.offset;
  const uint64_t bytes = entry.bytes;
  if (id == 0 || bytes == 0 || bytes % kGranularity != 0 ||
      offset < SharedFile::kFirstOffset || offset > SharedFile::kSize ||
      bytes > SharedFile::kSize - offset) {
    return kInvalidHandle;
  }
  if (!file->Hold(offset, bytes)) return kMapFailed;
  Status status = kOk;
  const Location location = static_cast<Location>(entry.location);
  if (entry.id.load() != id || entry.offset != offset) {
    status = kInvalidHandle;
  } else if (location == Location::kDevice &&
             (entry.device < 0 || entry.device >= devices())) {
    status = kInvalidDevice;
  }
  if (status != kOk) {
    file->Release(offset, bytes);
    return status;
  }
  Extent extent;
  extent.id = next_id_++;
  extent.location = location;
  extent.device = entry.device;
  extent.offset = offset;
  extent.bytes = bytes;
  extent.line = next_line_;
  next_line_ += bytes;
  extent.references = 1;
  extent.handle_types = entry.handle_types;
  extent.rdma_capable = entry.rdma_capable != 0;
  extent.imported_from = file;
  extent.owners_slot = slot;
  extent.owners_id = id;
  entry.last_opened_by.store(getpid());
  imported_[key] = extent.id;
  *out = &live_.emplace(extent.id, std::move(extent)).first->second;
  return kOk;
}

Extent* Extents::ImportOwn(uint64_t id) {
  auto found = live_.find(id);
  if (found == live_.end()) {
    const auto lingering =
        std::find_if(lingering_.begin(), lingering_.end(),
                     [id](const Extent& each) { return each.id == id; });
    if (lingering == lingering_.end() || lingering->from_malloc) return nullptr;
    found = live_.emplace(id, std::move(*lingering)).first;
    lingering_.erase(lingering);
  }
  ++found->second.references;
  return &found->second;
}

void Extents::Settle() {
  for (size_t i = 0; i < lingering_.size();) {
    if (IsHeldElsewhere(lingering_[i])) {
      ++i;
      continue;
    }
    Empty(lingering_[i]);
    lingering_[i] = std::move(lingering_.back());
    lingering_.pop_back();
  }
}

void Extents::Empty(const Extent& extent) {
  if (extent.exported_as >= 0) {
    files_[FileIndex(extent)]->GiveBackExtent(extent.exported_as);
  }
  // An error here could only mean a file system that cannot punch holes; the
  // pages would stay until exit, the accounting is right either way.
  if (!IsPhantom(extent)) {
    (void)fallocate(File(extent), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(extent.offset),
                    static_cast<off_t>(extent.bytes));
  }
  if (extent.location == Location::kDevice) {
    memory_[extent.device].used -= extent.bytes;
  } else {
    host_bytes_ -= extent.bytes;
  }
}

void Extents::FreeIfUnused(Extent* extent) {
  if (extent->references > 0 || extent->mappings > 0) return;
  if (extent->imported()) {
    extent->imported_from->Release(extent->offset, extent->bytes);
    std::erase_if(owners_,
                  [](const auto& each) { return each.second.expired(); });
    imported_.erase({extent->imported_from->header().token, extent->owners_id});
  } else {
    // A handle of cudaMalloc memory ends with it; a descriptor does not.
    if (extent->exported_as >= 0 && extent->from_malloc) {
      files_[FileIndex(*extent)]->header().extents[extent->exported_as].id = 0;
    }
    if (IsHeldElsewhere(*extent)) {
      lingering_.push_back(*extent);
    } else {
      Empty(*extent);
    }
  }
  live_.erase(extent->id);
}

}  // namespace cudasim
