// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/list_room.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace stratalloc {
namespace {

// A slice takes this part of what could leave. The rest is for what other
// threads use, for handles that hold a little of many elements, and for the
// slice before, whose copies out may still be under way.
constexpr Bytes kSlicesInRoom = 4;
// And no more pages than that: a slice waits for the last of its pages, while
// the bus brings those of the next.
constexpr Bytes kMostPages = 8;

// Calls f(handle) for each handle under `access`, if it may leave, until it
// says false.
template <typename F>
bool EachHandle(DeviceAllocator& device, const Access& access, F&& f) {
  HandleTable& table = device.table();
  if (access.bytes == 0 || !device.Contains(access.address) ||
      access.address >= table.evictable_end()) {
    return true;
  }
  HandleRegion* region = table.RegionOf(access.address);
  const Address end = access.address + access.bytes;
  for (std::uint64_t i = region->IndexOf(access.address);
       i < region->count() && region->AddressOf(i) < end; ++i) {
    const HandleRef handle{region, i};
    if (handle.stays()) return true;
    if (!f(handle)) return false;
  }
  return true;
}

// Is there room for `results` beside what is allocated? And is anything away?
bool ResultsFit(DeviceAllocator& device, Bytes results, bool* some_away) {
  const Occupancy now = device.Occupied();
  *some_away = now.some_away;
  return results == 0 || now.allocated + results <= now.limit;
}

Bytes Room(DeviceAllocator& device) {
  const Bytes limit = device.limit();
  const Bytes stays = device.StayingBytes();
  return limit - std::min(limit, stays);
}

std::size_t BeginOf(const ListElements& elements, std::size_t i) {
  return i == 0 ? 0 : static_cast<std::size_t>(elements.ends[i - 1]);
}

// Adds what element `i` takes beside what is in `counted`: neighbours share
// handles, and so may several lists.
Bytes Takes(DeviceAllocator& device, const ListElements& elements,
            std::size_t i, std::unordered_set<Address>& counted) {
  Bytes bytes = elements.results[i];
  for (std::size_t n = BeginOf(elements, i); n < BeginOf(elements, i + 1);
       ++n) {
    EachHandle(device, elements.accesses[n], [&](HandleRef handle) {
      if (counted.insert(handle.address()).second) bytes += handle.bytes();
      return true;
    });
  }
  return bytes;
}

}  // namespace

bool NothingAway(DeviceAllocator& device, Bytes results) {
  bool away = false;
  return ResultsFit(device, results, &away) && !away;
}

bool FitsAsItIs(DeviceAllocator& device, std::span<const Access> accesses,
                Bytes results) {
  bool away = false;
  if (!ResultsFit(device, results, &away)) return false;
  if (!away) return true;
  return std::all_of(accesses.begin(), accesses.end(),
                     [&](const Access& access) {
                       return EachHandle(device, access, [](HandleRef handle) {
                         return !IsAway(handle.state());
                       });
                     });
}

std::size_t Doubtful(DeviceAllocator& device, const ListElements& elements) {
  const std::size_t count = elements.ends.size();
  std::size_t widest = count;
  Bytes most = Room(device);
  for (std::size_t i = 0; i < count; ++i) {
    std::unordered_set<Address> counted;
    const Bytes bytes = Takes(device, elements, i, counted);
    if (bytes > most) {
      most = bytes;
      widest = i;
    }
  }
  return widest;
}

std::size_t NextSlice(DeviceAllocator& device, const ListElements& elements,
                      std::size_t first) {
  const std::size_t count = elements.ends.size();
  const Bytes page = device.table().region(true, PoolKind::kLarge).handle_bytes;
  const Bytes most = std::min(Room(device) / kSlicesInRoom, kMostPages * page);
  std::unordered_set<Address> counted;
  Bytes bytes = 0;
  for (std::size_t i = first; i < count; ++i) {
    bytes += Takes(device, elements, i, counted);
    if (bytes > most && i > first) return i - first;
  }
  return count - first;
}

}  // namespace stratalloc
