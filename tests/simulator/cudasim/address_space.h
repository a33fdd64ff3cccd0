// SPDX-License-Identifier: Apache-2.0
//
// address_space.h: reservations and mappings, and every refusal the driver
// knows for them. A mapping joins a whole extent to an address inside one
// reservation; it can be used only after access was granted, and each new
// mapping starts without.
//
// Addresses are handed out upwards and used again only when the arena's end
// was reached: a stale pointer then meets an unmapped address, not somebody
// else's block.
//
// Cost: every call is O(log mappings) plus the host's mmap; nothing scans.
// Thread-safety: called under the simulator's lock. Views are hidden under the
// exclusive `bytes_gate` as well, so that a copy that runs outside the lock
// never loses the pages it works on.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_ADDRESS_SPACE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_ADDRESS_SPACE_H_

#include <cstdint>
#include <map>
#include <shared_mutex>
#include <string>

#include "tests/simulator/cudasim/arena.h"
#include "tests/simulator/cudasim/extents.h"
#include "tests/simulator/cudasim/peers.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

enum class Access : int { kNone = 0, kRead = 1, kReadWrite = 3 };

struct Mapping {
  uint64_t bytes = 0;
  uint64_t serial = 0;  // never used again
  Extent* extent = nullptr;
  uint32_t readers = 0;  // one bit per device
  uint32_t writers = 0;
  bool host = false;     // granted to the host, readable at its own address
  bool peers = false;    // cudaMalloc memory: peer access counts, not grants
  int64_t ready_ns = 0;  // on the virtual clock: mapped, or brought, then
};

// What took a range away that is not mapped any more.
struct Unmapping {
  uint64_t bytes = 0;
  uint64_t extent = 0;
  std::string by;  // "cuMemUnmap (call 12)"
};

// How an operation gets at memory. kDirect: the device itself does, as a
// kernel or a fill. kCopy: a copy, which the driver stages for memory of
// cudaMalloc. kPeerCopy: cudaMemcpyPeer and its kin, which name both devices,
// so each side reaches its own.
enum class Reach { kDirect, kCopy, kPeerCopy };

class AddressSpace {
 public:
  AddressSpace(Arena* arena, Extents* extents, const Peers* peers,
               std::shared_mutex* bytes_gate)
      : arena_(arena),
        extents_(extents),
        peers_(peers),
        bytes_gate_(bytes_gate) {}
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // kInvalidValue: size or alignment no multiple of 2 MiB; kOutOfMemory: no
  // such range left. `hint` is taken if it is free.
  Status Reserve(uint64_t bytes, uint64_t alignment, uint64_t hint,
                 uint64_t* address);
  // kInvalidValue: not exactly one reservation, or mappings are left in it.
  Status Free(uint64_t address, uint64_t bytes);

  // kInvalidValue: unaligned, unknown handle, not the handle's whole size,
  // outside one reservation, or over a mapping.
  Status Map(uint64_t address, uint64_t bytes, uint64_t offset,
             uint64_t handle);
  // kInvalidValue: the range is not made of whole mappings.
  // `by` is remembered as what took the range away.
  Status Unmap(uint64_t address, uint64_t bytes,
               const std::string& by = "cuMemUnmap");
  // kInvalidValue: the range is not made of whole mappings, or the location
  // is none of this machine.
  Status SetAccess(uint64_t address, uint64_t bytes, Location location, int id,
                   Access access);
  // kInvalidValue outside mappings.
  Status GetAccess(uint64_t address, Location location, int id,
                   Access* access) const;

  // cudaMalloc: reserve, create and map in one; freed only as a whole.
  Status Malloc(int device, uint64_t bytes, uint64_t* address);
  // kInvalidValue unless `address` came from Malloc.
  Status FreeMalloc(uint64_t address, const std::string& by = "cudaFree");

  // Of a module's code, for the device, to the end of the process: outside the
  // books of the device, with bytes even where the device's memory has none.
  Status MapForModule(int device, uint64_t bytes, uint64_t* address);

  // cudaIpcOpenMemHandle: memory of another process, usable like that of
  // cudaMalloc; the mapping takes over the caller's reference.
  Status MapWhole(Extent* extent, uint64_t* address);

  // Empty if device `device` may read (or write) all of the range; else what
  // is wrong, for a violation text, and its `kind` (violations.h).
  std::string Problem(uint64_t address, uint64_t bytes, int device, bool write,
                      const char** kind = nullptr,
                      Reach reach = Reach::kDirect) const;

  // What took the mapping around the address away; nullptr if there never was
  // one, or another has come since.
  const Unmapping* FindUnmapping(uint64_t address, uint64_t* start) const;

  // When the bytes are there on the virtual clock: the latest of the mappings
  // in the range. What is not mapped counts as 0.
  int64_t ReadyAt(uint64_t address, uint64_t bytes) const;
  void SetReadyAt(uint64_t address, uint64_t bytes, int64_t when);
  void ResetReadyAt() {
    for (auto& [start, mapping] : mappings_) mapping.ready_ns = 0;
  }

  // How many mappings begin in the range.
  long CountMappings(uint64_t address, uint64_t bytes) const;

  // The mapping or reservation that contains the address; nullptr if none.
  const Mapping* FindMapping(uint64_t address, uint64_t* start) const;
  // Start and size of the reservation around the address.
  bool FindReservation(uint64_t address, uint64_t* start,
                       uint64_t* bytes) const;
  // Memory of cudaMalloc or of a pool begins there: no driver call may unmap
  // it or change its access.
  bool IsMalloc(uint64_t address) const;
  // Of MapForModule.
  bool IsOfModule(uint64_t address) const;

  const std::map<uint64_t, Mapping>& mappings() const { return mappings_; }
  const std::map<uint64_t, uint64_t>& reservations() const {
    return reservations_;
  }

 private:
  using Iterator = std::map<uint64_t, Mapping>::iterator;

  // The mappings [first, last) that fill [address, +bytes) exactly.
  bool WholeMappings(uint64_t address, uint64_t bytes, Iterator* first,
                     Iterator* last);
  // Phantom memory shows and hides nothing.
  bool Show(uint64_t address, Mapping* mapping);
  void Hide(uint64_t address, const Mapping& mapping);

  Arena* const arena_;
  Extents* const extents_;
  const Peers* const peers_;
  std::shared_mutex* const bytes_gate_;
  std::map<uint64_t, uint64_t> reservations_;  // start -> bytes
  std::map<uint64_t, Mapping> mappings_;       // start -> mapping
  std::map<uint64_t, Unmapping> unmappings_;   // start -> what ended it
  uint64_t last_serial_ = 0;
  uint64_t next_ = 0;  // offset in the arena of the next fresh address
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_ADDRESS_SPACE_H_
