// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/host_memory.h"

#include <sys/mman.h>

#include <iterator>

namespace cudasim {
namespace {
constexpr uint64_t kPage = 4096;
}  // namespace

Status HostMemory::Allocate(uint64_t bytes, unsigned flags, uint64_t* address,
                            bool reserve) {
  if (bytes == 0) return kInvalidValue;
  const uint64_t pages = (bytes + kPage - 1) / kPage * kPage;
  void* memory =
      mmap(nullptr, pages, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | (reserve ? 0 : MAP_NORESERVE), -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<uint64_t>(memory);
  ranges_[*address] = HostRange{bytes, pages, flags};
  freed_.erase(*address);
  pinned_bytes_ += bytes;
  return kOk;
}

void HostMemory::NoteFreed(uint64_t address, const std::string& by) {
  // Enough to recognise a mistake.
  if (freed_.size() > 65536) freed_.clear();
  freed_[address] = by;
}

Status HostMemory::Free(uint64_t address, const std::string& by) {
  auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.mapped_bytes == 0) {
    return kInvalidValue;
  }
  munmap(reinterpret_cast<void*>(address), found->second.mapped_bytes);
  pinned_bytes_ -= found->second.bytes;
  ranges_.erase(found);
  NoteFreed(address, by);
  return kOk;
}

Status HostMemory::Register(uint64_t address, uint64_t bytes, unsigned flags) {
  if (address == 0 || bytes == 0) return kInvalidValue;
  auto next = ranges_.lower_bound(address);
  const auto taken = [](const HostRange& range) {
    return range.mapped_bytes != 0 ? kInvalidValue
                                   : kHostMemoryAlreadyRegistered;
  };
  if (next != ranges_.end() && next->first - address < bytes) {
    return taken(next->second);
  }
  if (next != ranges_.begin() &&
      std::prev(next)->first + std::prev(next)->second.bytes > address) {
    return taken(std::prev(next)->second);
  }
  ranges_.emplace_hint(next, address, HostRange{bytes, 0, flags});
  freed_.erase(address);
  pinned_bytes_ += bytes;
  return kOk;
}

Status HostMemory::Unregister(uint64_t address, const std::string& by) {
  if (const Status status = Registered(address); status != kOk) return status;
  auto found = ranges_.find(address);
  pinned_bytes_ -= found->second.bytes;
  ranges_.erase(found);
  NoteFreed(address, by);
  return kOk;
}

Status HostMemory::Registered(uint64_t address) const {
  uint64_t start = 0;
  const HostRange* const range = Find(address, &start);
  if (range == nullptr) return kHostMemoryNotRegistered;
  return start != address || range->mapped_bytes != 0 ? kInvalidValue : kOk;
}

const HostRange* HostMemory::Find(uint64_t address, uint64_t* start) const {
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  auto found = std::prev(next);
  if (address - found->first >= found->second.bytes) return nullptr;
  *start = found->first;
  return &found->second;
}

bool HostMemory::IsPinned(uint64_t address, uint64_t bytes) const {
  uint64_t start = 0;
  const HostRange* range = Find(address, &start);
  return range != nullptr && bytes <= start + range->bytes - address;
}

}  // namespace cudasim
