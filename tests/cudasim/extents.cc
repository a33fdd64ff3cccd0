// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/extents.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/cudasim/arena.h"

namespace cudasim {
namespace {

// 64 TiB: never filled, the file is sparse. Offsets are not reused, and at
// 2 MiB each that is 33 million handles before the file has to grow.
constexpr uint64_t kFileStep = uint64_t{1} << 46;

int OpenFile(const std::string& name) {
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kFileStep)) != 0) {
    std::perror("cudasim: cannot create a memory file");
    std::_Exit(2);
  }
  return file;
}

}  // namespace

Extents::Extents(int devices) {
  memory_.resize(devices);
  next_offset_.assign(devices + 1, 0);
  OpenFiles();
}

void Extents::OpenFiles() {
  for (const int file : files_) close(file);
  files_.clear();
  for (int device = 0; device < devices(); ++device) {
    files_.push_back(OpenFile("cudasim-device-" + std::to_string(device)));
  }
  files_.push_back(OpenFile("cudasim-host"));
}

Status Extents::Create(Location location, int device, uint64_t bytes,
                       Extent** out) {
  // The device first: the granularity is the device's to say.
  if (location == Location::kDevice && (device < 0 || device >= devices())) {
    return kInvalidDevice;
  }
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
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
  if (next_offset_[file] + bytes > kFileStep) return kOutOfMemory;
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
  *out = &live_.emplace(extent.id, extent).first->second;
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

int Extents::File(const Extent& extent) const {
  return extent.location == Location::kDevice ? files_[extent.device]
                                              : files_.back();
}

void Extents::FreeIfUnused(Extent* extent) {
  if (extent->references > 0 || extent->mappings > 0) return;
  // An error here could only mean a file system that cannot punch holes; the
  // pages would stay until exit, the accounting is right either way.
  (void)fallocate(File(*extent), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(extent->offset),
                  static_cast<off_t>(extent->bytes));
  if (extent->location == Location::kDevice) {
    memory_[extent->device].used -= extent->bytes;
  }
  live_.erase(extent->id);
}

}  // namespace cudasim
