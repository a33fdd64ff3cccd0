// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/address_space.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <mutex>

#include "tests/simulator/cudasim/violations.h"

namespace cudasim {
namespace {

bool Aligned(uint64_t number) { return number % kGranularity == 0; }

uint64_t RoundUp(uint64_t number, uint64_t unit) {
  return (number + unit - 1) / unit * unit;
}

std::string Hex(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx",
                static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

Status AddressSpace::Reserve(uint64_t bytes, uint64_t alignment, uint64_t hint,
                             uint64_t* address) {
  if (bytes == 0 || !Aligned(bytes)) return kInvalidValue;
  if (alignment == 0) alignment = kGranularity;
  if ((alignment & (alignment - 1)) != 0) return kInvalidValue;
  alignment = std::max(alignment, kGranularity);
  const uint64_t end = arena_->base() + arena_->size();
  auto is_free = [&](uint64_t start) {
    if (start < arena_->base() || start > end || bytes > end - start) {
      return false;
    }
    auto next = reservations_.lower_bound(start);
    if (next != reservations_.end() && next->first - start < bytes) {
      return false;
    }
    return next == reservations_.begin() ||
           std::prev(next)->first + std::prev(next)->second <= start;
  };
  // The end of the last reservation that begins before start + bytes.
  auto end_of_blocker = [&](uint64_t start) {
    auto blocker = std::prev(reservations_.lower_bound(start + bytes));
    return blocker->first + blocker->second;
  };
  uint64_t start = 0;
  if (hint != 0 && hint % alignment == 0 && is_free(hint)) {
    start = hint;
  } else {
    start = RoundUp(arena_->base() + next_, alignment);
    bool wrapped = false;
    while (!is_free(start)) {
      if (start > end || bytes > end - start) {
        if (wrapped) return kOutOfMemory;
        wrapped = true;
        start = RoundUp(arena_->base(), alignment);
      } else {
        start = RoundUp(end_of_blocker(start), alignment);
      }
    }
    next_ = start + bytes - arena_->base();
  }
  reservations_[start] = bytes;
  *address = start;
  return kOk;
}

Status AddressSpace::Free(uint64_t address, uint64_t bytes) {
  auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) {
    return kInvalidValue;
  }
  auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first - address < bytes) {
    return kInvalidValue;
  }
  reservations_.erase(found);
  return kOk;
}

Status AddressSpace::Map(uint64_t address, uint64_t bytes, uint64_t offset,
                         uint64_t handle) {
  if (bytes == 0 || !Aligned(address)) return kInvalidValue;
  Extent* extent = extents_->Find(handle);
  if (extent == nullptr) return kInvalidValue;
  // The driver maps whole allocations only.
  if (offset != 0 || bytes != extent->bytes) return kNotSupported;
  uint64_t start = 0;
  uint64_t size = 0;
  if (!FindReservation(address, &start, &size) ||
      bytes > start + size - address) {
    return kInvalidValue;
  }
  auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < bytes) {
    return kInvalidValue;
  }
  if (next != mappings_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second.bytes > address) return kInvalidValue;
  }
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.serial = ++last_serial_;
  mapping.extent = extent;
  auto gone = unmappings_.lower_bound(address);
  while (gone != unmappings_.end() && gone->first - address < bytes) {
    gone = unmappings_.erase(gone);
  }
  mappings_.emplace_hint(next, address, mapping);
  extents_->AddMapping(extent);
  return kOk;
}

bool AddressSpace::WholeMappings(uint64_t address, uint64_t bytes,
                                 Iterator* first, Iterator* last) {
  *first = mappings_.find(address);
  uint64_t covered = 0;
  *last = *first;
  while (covered < bytes) {
    if (*last == mappings_.end() || (*last)->first != address + covered) {
      return false;
    }
    covered += (*last)->second.bytes;
    ++*last;
  }
  return covered == bytes && bytes != 0;
}

long AddressSpace::CountMappings(uint64_t address, uint64_t bytes) const {
  return std::distance(mappings_.lower_bound(address),
                       mappings_.lower_bound(address + bytes));
}

Status AddressSpace::Unmap(uint64_t address, uint64_t bytes,
                           const std::string& by) {
  Iterator first;
  Iterator last;
  if (!WholeMappings(address, bytes, &first, &last)) return kInvalidValue;
  {
    std::unique_lock<std::shared_mutex> gate(*bytes_gate_);
    for (Iterator each = first; each != last; ++each) {
      const Mapping& mapping = each->second;
      if (mapping.readers != 0 || mapping.peers) Hide(each->first, mapping);
      if (mapping.host) arena_->HideFromHost(each->first, mapping.bytes);
    }
  }
  for (Iterator each = first; each != last; ++each) {
    // Addresses grow, so the lowest are the oldest.
    if (unmappings_.size() >= 65536) unmappings_.erase(unmappings_.begin());
    unmappings_[each->first] =
        Unmapping{each->second.bytes, each->second.extent->id, by};
    extents_->DropMapping(each->second.extent);
  }
  mappings_.erase(first, last);
  return kOk;
}

bool AddressSpace::Show(uint64_t address, Mapping* mapping) {
  if (extents_->IsPhantom(*mapping->extent)) return true;
  return arena_->ShowView(
      address, mapping->bytes, extents_->File(*mapping->extent),
      mapping->extent->offset, mapping->writers != 0 || mapping->peers);
}

void AddressSpace::Hide(uint64_t address, const Mapping& mapping) {
  if (extents_->IsPhantom(*mapping.extent)) return;
  arena_->HideView(address, mapping.bytes);
}

Status AddressSpace::SetAccess(uint64_t address, uint64_t bytes,
                               Location location, int id, Access access) {
  Iterator first;
  Iterator last;
  if (!WholeMappings(address, bytes, &first, &last)) return kInvalidValue;
  if (location == Location::kDevice) {
    if (id < 0 || id >= extents_->devices()) return kInvalidDevice;
  } else if (location != Location::kHost && location != Location::kHostNuma) {
    return kInvalidValue;
  }
  for (Iterator each = first; each != last; ++each) {
    Mapping& mapping = each->second;
    if (location != Location::kDevice) {
      // The driver grants the host only what is located on the host.
      if (mapping.extent->location == Location::kDevice) return kNotSupported;
      const bool wanted = access != Access::kNone;
      if (wanted == mapping.host) continue;
      std::unique_lock<std::shared_mutex> gate(*bytes_gate_);
      if (!(wanted ? arena_->ShowToHost(each->first, mapping.bytes,
                                        extents_->File(*mapping.extent),
                                        mapping.extent->offset)
                   : arena_->HideFromHost(each->first, mapping.bytes))) {
        return kOutOfMemory;
      }
      mapping.host = wanted;
      if (arena_->delta() == 0 && !wanted && mapping.readers != 0 &&
          !Show(each->first, &mapping)) {
        return kOutOfMemory;
      }
      continue;
    }
    if (access != Access::kNone &&
        mapping.extent->location == Location::kDevice &&
        id != mapping.extent->device &&
        !peers_->Can(id, mapping.extent->device)) {
      return kInvalidDevice;
    }
    const uint32_t bit = uint32_t{1} << id;
    const uint32_t readers = mapping.readers;
    const uint32_t writers = mapping.writers;
    mapping.readers &= ~bit;
    mapping.writers &= ~bit;
    if (access != Access::kNone) mapping.readers |= bit;
    if (access == Access::kReadWrite) mapping.writers |= bit;
    const bool seen = readers != 0;
    if (mapping.readers != 0) {
      // The page protection follows the widest grant; per-device rights are
      // checked by Problem().
      if (seen && (writers != 0) == (mapping.writers != 0)) continue;
      std::unique_lock<std::shared_mutex> gate(*bytes_gate_);
      if (!Show(each->first, &mapping)) {
        mapping.readers = readers;
        mapping.writers = writers;
        return kOutOfMemory;
      }
    } else if (seen) {
      std::unique_lock<std::shared_mutex> gate(*bytes_gate_);
      Hide(each->first, mapping);
      if (arena_->delta() == 0 && mapping.host &&
          !arena_->ShowToHost(each->first, mapping.bytes,
                              extents_->File(*mapping.extent),
                              mapping.extent->offset)) {
        return kOutOfMemory;
      }
    }
  }
  return kOk;
}

Status AddressSpace::GetAccess(uint64_t address, Location location, int id,
                               Access* access) const {
  uint64_t start = 0;
  const Mapping* mapping = FindMapping(address, &start);
  if (mapping == nullptr) return kInvalidValue;
  if (location != Location::kDevice) {
    *access = mapping->host ? Access::kReadWrite : Access::kNone;
    return kOk;
  }
  if (id < 0 || id >= extents_->devices()) return kInvalidDevice;
  const uint32_t bit = uint32_t{1} << id;
  *access = (mapping->writers & bit) != 0   ? Access::kReadWrite
            : (mapping->readers & bit) != 0 ? Access::kRead
                                            : Access::kNone;
  return kOk;
}

Status AddressSpace::Malloc(int device, uint64_t bytes, uint64_t* address) {
  if (bytes > arena_->size()) return kOutOfMemory;
  bytes = RoundUp(bytes, kGranularity);
  Extent* extent = nullptr;
  const Status status =
      extents_->Create(Location::kDevice, device, bytes, &extent);
  if (status != kOk) return status;
  extent->from_malloc = true;
  return MapWhole(extent, address);
}

Status AddressSpace::MapForModule(int device, uint64_t bytes,
                                  uint64_t* address) {
  bytes = RoundUp(bytes, kGranularity);
  Extent* extent = nullptr;
  Status status = extents_->CreateForModule(bytes, &extent);
  if (status == kOk) status = Reserve(bytes, kGranularity, 0, address);
  if (status == kOk) status = Map(*address, bytes, 0, extent->id);
  if (status == kOk) {
    status = SetAccess(*address, bytes, Location::kDevice, device,
                       Access::kReadWrite);
  }
  return status;
}

Status AddressSpace::MapWhole(Extent* extent, uint64_t* address) {
  const uint64_t id = extent->id;
  const uint64_t bytes = extent->bytes;
  Status status = Reserve(bytes, kGranularity, 0, address);
  if (status == kOk) {
    status = Map(*address, bytes, 0, id);
    Mapping& mapping = mappings_[*address];
    mapping.peers = true;
    if (!Show(*address, &mapping)) {
      Unmap(*address, bytes);
      Free(*address, bytes);
      status = kOutOfMemory;
    }
  }
  extents_->Release(id);  // the mapping holds it
  return status;
}

Status AddressSpace::FreeMalloc(uint64_t address, const std::string& by) {
  if (!IsMalloc(address)) return kInvalidValue;
  const uint64_t bytes = mappings_.find(address)->second.bytes;
  Unmap(address, bytes, by);
  return Free(address, bytes);
}

bool AddressSpace::IsOfModule(uint64_t address) const {
  auto found = mappings_.find(address);
  return found != mappings_.end() && found->second.extent->of_module &&
         found->second.extent->location != Location::kDevice;
}

bool AddressSpace::IsMalloc(uint64_t address) const {
  auto found = mappings_.find(address);
  return found != mappings_.end() &&
         (found->second.extent->from_malloc || found->second.extent->pooled);
}

const Mapping* AddressSpace::FindMapping(uint64_t address,
                                         uint64_t* start) const {
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return nullptr;
  auto found = std::prev(next);
  if (address - found->first >= found->second.bytes) return nullptr;
  *start = found->first;
  return &found->second;
}

bool AddressSpace::FindReservation(uint64_t address, uint64_t* start,
                                   uint64_t* bytes) const {
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  auto found = std::prev(next);
  if (address - found->first >= found->second) return false;
  *start = found->first;
  *bytes = found->second;
  return true;
}

const Unmapping* AddressSpace::FindUnmapping(uint64_t address,
                                             uint64_t* start) const {
  auto next = unmappings_.upper_bound(address);
  if (next == unmappings_.begin()) return nullptr;
  auto found = std::prev(next);
  if (address - found->first >= found->second.bytes) return nullptr;
  *start = found->first;
  return &found->second;
}

std::string AddressSpace::Problem(uint64_t address, uint64_t bytes, int device,
                                  bool write, const char** kind,
                                  Reach reach) const {
  if (kind != nullptr) *kind = kind::kIllegalAddress;
  uint64_t at = address;
  const uint64_t end = address + bytes;
  while (at < end) {
    uint64_t start = 0;
    const Mapping* mapping = FindMapping(at, &start);
    if (mapping == nullptr) {
      uint64_t size = 0;
      if (const Unmapping* gone = FindUnmapping(at, &start)) {
        if (kind != nullptr) *kind = kind::kUseAfterUnmap;
        return Hex(at) + " is not mapped: " + gone->by + " has taken handle " +
               Hex(gone->extent) +
               " away there; missing edge: the use must be complete, by a "
               "synchronisation, before " +
               gone->by.substr(0, gone->by.find(' ')) +
               ", or the range mapped again before the use";
      }
      return Hex(at) + (FindReservation(at, &start, &size)
                            ? " is reserved but not mapped"
                            : " belongs to no reservation");
    }
    const Extent& extent = *mapping->extent;
    if (extent.OwnerFreedIt()) {
      if (kind != nullptr) *kind = kind::kUseAfterOwnersFree;
      return "process " + std::to_string(extent.imported_from->header().pid) +
             ", whose memory " + Hex(start) + " is, has freed it";
    }
    if (mapping->peers) {
      if (reach == Reach::kDirect && device != extent.device &&
          !peers_->IsEnabled(device, extent.device)) {
        return Hex(at) + " is memory of device " +
               std::to_string(extent.device) + " and device " +
               std::to_string(device) + " has no peer access to it";
      }
    } else {
      const int asking =
          reach == Reach::kPeerCopy && extent.location == Location::kDevice
              ? extent.device
              : device;
      const uint32_t bit = uint32_t{1} << asking;
      if ((mapping->readers & bit) == 0) {
        return Hex(at) + " is mapped but no access was granted to device " +
               std::to_string(asking);
      }
      if (write && (mapping->writers & bit) == 0) {
        return Hex(at) + " is mapped read-only for device " +
               std::to_string(asking);
      }
    }
    at = start + mapping->bytes;
  }
  return "";
}

int64_t AddressSpace::ReadyAt(uint64_t address, uint64_t bytes) const {
  int64_t ready = 0;
  if (bytes == 0) return ready;
  for (auto each = mappings_.upper_bound(address + bytes - 1);
       each != mappings_.begin();) {
    --each;
    if (each->first + each->second.bytes <= address) break;
    ready = std::max(ready, each->second.ready_ns);
  }
  return ready;
}

void AddressSpace::SetReadyAt(uint64_t address, uint64_t bytes, int64_t when) {
  if (bytes == 0) return;
  for (auto each = mappings_.upper_bound(address + bytes - 1);
       each != mappings_.begin();) {
    --each;
    if (each->first + each->second.bytes <= address) break;
    each->second.ready_ns = std::max(each->second.ready_ns, when);
  }
}

}  // namespace cudasim
