// SPDX-License-Identifier: Apache-2.0
//
// extents.h: physical memory. One sparse memory file per device (and one for
// memory located on the host) backs everything; a handle of cuMemCreate is an
// extent of such a file. A file per handle would exhaust the descriptors of
// the process: 8 GiB in 2 MiB handles are 4096.
//
// Neither ids nor file offsets are ever used twice, so a stale handle can be
// told from a new one. An extent lives while the program holds references
// (create, retain) or mappings; when the last of both goes, its pages are
// punched out of the file and its bytes leave the accounting.
//
// An extent can be exported to other processes and imported from them. What is
// imported counts against nobody here. What another process still holds stays
// in the owner's books after its own last reference, until it is found to be
// let go (Settle): memory in use elsewhere is not free.
//
// Phantom memory on a device is the same without bytes: no file pages, no view,
// only addresses, handles and accounting. Memory located on the host keeps its
// bytes.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_EXTENTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_EXTENTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/shared_file.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

// Where memory is, and who is granted access: the values are those of
// CUmemLocationType.
enum class Location : int {
  kInvalid = 0,
  kDevice = 1,
  kHost = 2,
  kHostNuma = 3,
};

struct Extent {
  uint64_t id = 0;
  Location location = Location::kDevice;
  int device = 0;  // of the location; NUMA node for kHostNuma
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t line = 0;   // where its bytes lie on the access log's line
  int references = 0;  // held by the program
  int mappings = 0;
  unsigned handle_types = 0;  // asked for at creation
  bool rdma_capable = false;  // asked for at creation
  bool from_malloc = false;   // made by cudaMalloc, no handle was given out
  bool of_module = false;     // holds device variables, to the process's end;
                              // on the host: of a module, outside the books
  bool pooled = false;        // a chunk of a memory pool
  int exported_as = -1;       // entry in its file's table
  // Of an imported one: the file, and the entry and id its owner gave it.
  std::shared_ptr<SharedFile> imported_from;
  uint32_t owners_slot = 0;
  uint64_t owners_id = 0;

  bool imported() const { return imported_from != nullptr; }
  // Freed by the process that made it, while it is still used here.
  bool OwnerFreedIt() const {
    return imported() &&
           imported_from->header().extents[owners_slot].id.load() != owners_id;
  }
};

// Capacity and use of one device, in bytes.
struct DeviceMemory {
  uint64_t capacity = 0;
  uint64_t used = 0;
  uint64_t peak = 0;
  uint64_t context = 0;  // taken by context and code, outside every allocator
  bool cublas = false;   // cuBLAS's code is part of that
  uint64_t others = 0;   // held by another process (pressure.h)

  uint64_t Free() const {
    const uint64_t taken = used + context + others;
    return taken < capacity ? capacity - taken : 0;
  }
};

class Extents {
 public:
  explicit Extents(int devices, bool phantom = false);
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;

  // kInvalidValue for a size that is no multiple of 2 MiB, kInvalidDevice,
  // kOutOfMemory when the device's capacity is spent.
  Status Create(Location location, int device, uint64_t bytes, Extent** out);

  // In memory of the host that nobody counts, to the end of the process.
  Status CreateForModule(uint64_t bytes, Extent** out);

  // The extent of a handle the program still holds, or nullptr.
  Extent* Find(uint64_t id);
  void Retain(Extent* extent) { ++extent->references; }
  // kInvalidValue if the program holds no reference (released twice, never
  // created).
  Status Release(uint64_t id);
  // The cuMemRelease (by its count) that gave the last reference back, or 0:
  // of a handle released too often.
  uint64_t ReleasedBy(uint64_t id) const;
  void NoteReleased(uint64_t id, uint64_t call);

  void AddMapping(Extent* extent) { ++extent->mappings; }
  void DropMapping(Extent* extent);

  int File(const Extent& extent) const;

  // Puts the extent into its file's table. kOutOfMemory if the table is full,
  // kNotSupported for phantom memory.
  Status Export(Extent* extent);
  const std::shared_ptr<SharedFile>& file(int device) const {
    return files_[device];
  }
  const SharedFile& FileOf(const Extent& extent) const;
  // Does another process, or a descriptor on its way to one, hold it?
  bool IsHeldElsewhere(const Extent& extent) const;
  // The extent behind another process's table entry: one per entry, however
  // often it is imported; each import counts as a reference. kInvalidHandle:
  // the owner has freed it, or never exported it. kInvalidDevice: this machine
  // has no such device.
  // One descriptor per file of another process, however much comes from it.
  Status Import(std::shared_ptr<SharedFile> file, uint32_t slot, uint64_t id,
                Extent** out);
  // The same for what this process exported itself, even if all that was left
  // of it was a descriptor. nullptr: gone.
  Extent* ImportOwn(uint64_t id);
  // Takes what other processes have let go meanwhile out of the books.
  void Settle();
  // Freed here and still held elsewhere.
  const std::vector<Extent>& lingering() const { return lingering_; }
  // New, empty files: a forked child must not share its parent's bytes. Only
  // while nothing is alive.
  void OpenFiles();

  // In handles located on the host.
  uint64_t host_bytes() const { return host_bytes_; }
  // No byte of this extent exists.
  bool IsPhantom(const Extent& extent) const {
    return phantom_ && extent.location == Location::kDevice;
  }
  bool phantom() const { return phantom_; }
  // Only while nothing is alive.
  void SetPhantom(bool phantom) { phantom_ = phantom; }

  int devices() const { return static_cast<int>(memory_.size()); }
  DeviceMemory& memory(int device) { return memory_[device]; }

  // Handles the program still holds or has mapped.
  const std::unordered_map<uint64_t, Extent>& live() const { return live_; }

 private:
  void FreeIfUnused(Extent* extent);
  // Its pages are punched out, its bytes leave the books.
  void Empty(const Extent& extent);
  size_t FileIndex(const Extent& extent) const;

  bool phantom_;
  std::vector<DeviceMemory> memory_;
  uint64_t host_bytes_ = 0;
  // One per device, then the host's.
  std::vector<std::shared_ptr<SharedFile>> files_;
  std::vector<uint64_t> next_offset_;
  std::unordered_map<uint64_t, Extent> live_;
  std::unordered_map<uint64_t, uint64_t> released_;  // id -> call
  // Imported ones by owner and the owner's id.
  std::map<std::pair<ProcessToken, uint64_t>, uint64_t> imported_;
  std::map<std::pair<ProcessToken, int>, std::weak_ptr<SharedFile>> owners_;
  std::vector<Extent> lingering_;
  uint64_t next_line_ = uint64_t{1} << 62;  // above all addresses
  uint64_t next_id_ = 0x5100000001;         // looks like nothing else
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_EXTENTS_H_
