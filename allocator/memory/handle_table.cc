// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/handle_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

namespace stratalloc {
namespace {

// What is away keeps its address, and every (stream, class) pair has segments
// of its own: sixteen capacities per region leave room for a model sixteen
// times the card in one region.
constexpr Bytes kRegionCapacities = 16;
constexpr Bytes kRegionMin = 16 * kGiB;
constexpr Bytes kRegionMax = 4096 * kGiB;
constexpr Bytes kRegionLeast = kGiB;

}  // namespace

const char* HandleStateName(HandleState state) {
  static constexpr const char* kNames[kHandleStates] = {
      "unmapped",  "resident", "leaving",    "copying out", "host",
      "host+disk", "disk",     "copying in", "poisoned",    "releasing"};
  return kNames[static_cast<int>(state)];
}

Result<HandleTable> HandleTable::Create(const Device& device, Bytes capacity,
                                        Bytes large_handle_bytes) {
  const Bytes small = device.granularity();
  Bytes region_bytes =
      RoundUp(std::clamp(capacity * kRegionCapacities, kRegionMin, kRegionMax),
              std::max(small, large_handle_bytes));
  // A process may have little address space left (sanitizers, ulimit -v):
  // less room for what is away is better than no allocator.
  Result<Address> base = device.ReserveAddress(4 * region_bytes);
  while (!base && region_bytes / 2 >= kRegionLeast) {
    region_bytes = RoundUp(region_bytes / 2, large_handle_bytes);
    base = device.ReserveAddress(4 * region_bytes);
  }
  if (!base) return tl::unexpected(base.error());
  Result<HandleTable> made = At(*base, region_bytes, small, large_handle_bytes);
  if (!made) device.FreeAddress(*base, 4 * region_bytes);
  return made;
}

Result<HandleTable> HandleTable::At(Address base, Bytes region_bytes,
                                    Bytes small_handle_bytes,
                                    Bytes large_handle_bytes) {
  HandleTable table;
  table.base_ = base;
  table.region_bytes_ = region_bytes;
  for (int i = 0; i < 4; ++i) {
    HandleRegion& region = table.regions_[i];
    region.base = table.base_ + i * region_bytes;
    region.evictable = i < 2;
    region.kind = i % 2 == 0 ? PoolKind::kSmall : PoolKind::kLarge;
    region.handle_bytes = i % 2 == 0 ? small_handle_bytes : large_handle_bytes;
    region.bytes = region_bytes;
    // Zero pages are valid entries (kUnmapped) and cost nothing until used.
    void* entries = mmap(nullptr, region.count() * sizeof(HandleEntry),
                         PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (entries == MAP_FAILED) {
      const Bytes wanted = region.count() * sizeof(HandleEntry);
      table.DropEntries();
      return Fail(ErrorCode::kHostOutOfMemory,
                  "no address space for the handle table of " +
                      FormatBytes(wanted) + "; raise ulimit -v");
    }
    region.entries = static_cast<HandleEntry*>(entries);
  }
  return table;
}

void HandleTable::DropEntries() {
  for (HandleRegion& region : regions_) {
    if (region.entries != nullptr) {
      munmap(region.entries, region.count() * sizeof(HandleEntry));
      region.entries = nullptr;
    }
  }
}

void HandleTable::Destroy(const Device& device) {
  DropEntries();
  if (base_ != 0) device.FreeAddress(base_, 4 * region_bytes_);
  base_ = 0;
}

}  // namespace stratalloc
