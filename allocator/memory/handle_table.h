// SPDX-License-Identifier: Apache-2.0
// The state of every handle position of one device. The reservation is four
// equal regions, evictable before private, small handles before large:
//
//   base                                                             base+4R
//   | evictable small | evictable large | private small | private large |
//
// Private pools lie in the last two, and without tiering everything does: one
// comparison tells that an address there can never be away. In the first two a
// division finds the entry, which tells whether its pool's memory may leave
// (`stays`), and if so whether it has. "Handle" here is the position in
// the reservation; the physical memory behind it is a PhysicalHandle, which
// moves between positions (recycling).
//
// Nobody outside this room sees a HandleEntry: they have a HandleRef, which
// tells the state, whether what lives there may leave, and what operators did
// with it (handle_use.h).
//
// Thread-safety: the atomics of HandleEntry are read by the op guard without
// a lock. Every other member, and every *change* of `state` except where
// noted, needs the device lock.
//
// Who wins, pin against eviction: the guard does pins++ and then reads state;
// the evictor writes kLeaving and then reads pins. Both are sequentially
// consistent, so at least one sees the other: either the evictor gives up or
// the guard goes to its slow path.
#ifndef STRATALLOC_ALLOCATOR_MEMORY_HANDLE_TABLE_H_
#define STRATALLOC_ALLOCATOR_MEMORY_HANDLE_TABLE_H_

#include <atomic>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/cuda/device.h"
#include "allocator/memory/external_streams.h"
#include "allocator/values/handle_use.h"
#include "allocator/values/size_rules.h"

namespace stratalloc {

// See the state x event table in allocator/RESIDENCY.md.
enum class HandleState : std::uint8_t {
  kUnmapped = 0,     // no bytes anywhere: nothing live here
  kResident = 1,     // mapped, usable
  kLeaving = 2,      // marked by an eviction; a look may still cancel it
  kCopyingOut = 3,   // its streams are done; bytes are copied or checked
  kHost = 4,         // away, bytes in pinned host memory
  kHostAndDisk = 5,  // away, equal bytes on host and in the spill file
  kDisk = 6,         // away, bytes in the spill file
  kCopyingIn = 7,    // mapped; usable by streams that wait for its event
  kPoisoned = 8,     // its bytes are lost; every use raises until freed
  kReleasing = 9,    // mapped, wholly free, being fenced before its unmap
};
inline constexpr int kHandleStates = 10;
const char* HandleStateName(HandleState state);

constexpr bool IsAway(HandleState s) {
  return s == HandleState::kHost || s == HandleState::kHostAndDisk ||
         s == HandleState::kDisk || s == HandleState::kPoisoned;
}
// Its bytes lie below and may come back: they are not lost.
constexpr bool MayReturn(HandleState s) {
  return IsAway(s) && s != HandleState::kPoisoned;
}
// Mapped with the owner's bytes in it: counts as device memory.
constexpr bool IsOnDevice(HandleState s) {
  return s == HandleState::kResident || s == HandleState::kLeaving ||
         s == HandleState::kCopyingOut || s == HandleState::kCopyingIn;
}

struct PhysicalMemory;

// One line of the cache: the guard's pin, look and note touch no other. A use
// is its base, so that a pin is a pointer to what it counts, and the handle is
// still found (HandleTable::RefOf).
struct alignas(64) HandleEntry : HandleUse {
  std::atomic<HandleState> state{HandleState::kUnmapped};
  // Tiering keeps a copy below; when the last live block goes, the allocator
  // reports the handle as dropped. Written under the device lock.
  std::atomic<bool> has_copy{false};
  // Its pool's memory never leaves, although the region is evictable. Written
  // under the device lock, and only while nothing lives here: whoever uses what
  // lives here may read it without.
  std::atomic<bool> stays{false};
  // Device lock from here on.
  // What is mapped here. A position that is kUnmapped may keep a mapping that
  // nothing uses, see device/handle_pool.h; `used_streams` says who may still.
  PhysicalMemory* physical = nullptr;
  std::uint32_t live = 0;        // live blocks that overlap this handle
  std::uint32_t generation = 0;  // moves on whenever its bytes are given up
  std::uint32_t ruled = 0;       // of those live blocks, that have a rule
  std::uint32_t claim = 0;       // number of the last eviction that chose it
};

static_assert(sizeof(HandleEntry) == 64);

struct HandleRegion {
  Address base = 0;
  Bytes bytes = 0;
  Bytes handle_bytes = 0;
  bool evictable = false;  // may hold what leaves, see HandleEntry::stays
  PoolKind kind = PoolKind::kSmall;
  HandleEntry* entries = nullptr;

  std::uint64_t count() const { return bytes / handle_bytes; }
  bool Contains(Address a) const { return a >= base && a - base < bytes; }
  std::uint64_t IndexOf(Address a) const { return (a - base) / handle_bytes; }
  Address AddressOf(std::uint64_t index) const {
    return base + index * handle_bytes;
  }
};

// One handle: a region and an index. Cheap to copy; valid for the life of the
// device's reservation.
struct HandleRef {
  HandleRegion* region = nullptr;
  std::uint64_t index = 0;

  HandleUse& use() const { return region->entries[index]; }
  HandleState state(std::memory_order order = std::memory_order_seq_cst) const {
    return region->entries[index].state.load(order);
  }
  // Its pool's memory never leaves. See HandleEntry::stays for who may ask.
  bool stays() const {
    return region->entries[index].stays.load(std::memory_order_relaxed);
  }
  HandleEntry& entry() const { return region->entries[index]; }  // this room's
  Address address() const { return region->AddressOf(index); }
  Bytes bytes() const { return region->handle_bytes; }
  friend bool operator==(const HandleRef&, const HandleRef&) = default;
};

class HandleTable {
 public:
  // Reserves address space for `capacity` bytes of device memory many times
  // over (what is away keeps its address) and the entries for it.
  static Result<HandleTable> Create(const Device& device, Bytes capacity,
                                    Bytes large_handle_bytes);
  // The entries for a reservation that somebody else made, of four regions.
  static Result<HandleTable> At(Address base, Bytes region_bytes,
                                Bytes small_handle_bytes,
                                Bytes large_handle_bytes);
  // Gives the reservation back. For tests; nothing may be mapped.
  void Destroy(const Device& device);
  void DropEntries();  // what At made

  Address base() const { return base_; }
  Address end() const { return base_ + 4 * region_bytes_; }
  Address evictable_end() const { return base_ + 2 * region_bytes_; }
  HandleRegion& region(bool evictable, PoolKind kind) {
    return regions_[(evictable ? 0 : 2) + static_cast<int>(kind)];
  }
  // The handle whose use this is; no region if it is another table's.
  HandleRef RefOf(const HandleUse& use) {
    const auto* const entry = static_cast<const HandleEntry*>(&use);
    for (HandleRegion& region : regions_) {
      if (entry >= region.entries && entry < region.entries + region.count()) {
        return {&region, static_cast<std::uint64_t>(entry - region.entries)};
      }
    }
    return {};
  }
  // The handle that holds `address`; no region outside the reservation.
  HandleRef RefOf(Address address) {
    HandleRegion* const region = RegionOf(address);
    if (region == nullptr) return {};
    return {region, region->IndexOf(address)};
  }
  // nullptr for an address outside the reservation.
  HandleRegion* RegionOf(Address address) {
    if (address < base_ || address >= end()) return nullptr;
    return &regions_[(address - base_) / region_bytes_];
  }

 private:
  Address base_ = 0;
  Bytes region_bytes_ = 0;
  HandleRegion regions_[4];
};

// Streams as bits. A device's streams get bits 0..61 in order of appearance;
// later ones share kOverflowBit, which means "fence the whole device", with
// those that may be destroyed (external_streams.h).
// Thread-safety: lock-free; a bit never changes its stream.
class StreamTable {
 public:
  static constexpr int kOverflowBit = 62;
  // A graph's: it runs on any stream, of other devices too. Fence them all.
  static constexpr int kGraphBit = 63;

  int BitOf(StreamId stream) {
    // Nearly always the default stream, which nobody can destroy.
    if (__builtin_expect(Raw(stream) != 0, 0) && ExternalStreams::Has(stream)) {
      return ExternalBit(stream);
    }
    const std::uint64_t wanted = Raw(stream);
    for (int i = 0; i < kOverflowBit; ++i) {
      std::uint64_t seen = streams_[i].load(std::memory_order_acquire);
      if (seen == wanted + 1) return i;
      if (seen == 0 && streams_[i].compare_exchange_strong(
                           seen, wanted + 1, std::memory_order_acq_rel)) {
        return i;
      }
      if (seen == wanted + 1) return i;
    }
    return kOverflowBit;
  }
  // Does the bit stand for a stream yet? Bits are given in order. Its stream
  // may have turned out external since.
  bool Has(int bit) const {
    return streams_[bit].load(std::memory_order_acquire) != 0;
  }
  // REQUIRES: bit came from BitOf and is below kOverflowBit.
  StreamId StreamOf(int bit) const {
    return StreamId{streams_[bit].load(std::memory_order_acquire) - 1};
  }

  // The same streams, those that have turned external since under the bit that
  // BitOf gives them now: what is left below kOverflowBit may be asked.
  std::uint64_t MayAsk(std::uint64_t streams) const {
    for (int bit = 0; bit < kOverflowBit && streams >> bit != 0; ++bit) {
      if ((streams >> bit & 1) == 0 || !ExternalStreams::Has(StreamOf(bit))) {
        continue;
      }
      streams &= ~(std::uint64_t{1} << bit);
      streams |= std::uint64_t{1} << ExternalBit(StreamOf(bit));
    }
    return streams;
  }

 private:
  static int ExternalBit(StreamId stream) {
    return IsElsewhere(stream) ? kGraphBit : kOverflowBit;
  }

  // Stream value + 1: the default stream is 0 and an empty place is 0 too.
  std::atomic<std::uint64_t> streams_[kOverflowBit]{};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MEMORY_HANDLE_TABLE_H_
