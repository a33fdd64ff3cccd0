// SPDX-License-Identifier: Apache-2.0
// The physical memory of one device: what is mapped, and what waits to be
// mapped again. Creating and releasing dominates the cost of mapping, so
// memory that is not used any more is kept; and so are its mappings. One piece
// of memory may be mapped at several addresses, of which one at most is used:
//
//   position A   [ unused ]--.
//                            |--> PhysicalMemory (2 MiB)
//   position B   [ in use ]--'
//
// When A is wanted again and B is free by then, nothing is asked of the
// driver. CUDA lets kernels see through one address what earlier kernels wrote
// through another (within one kernel it does not, and no kernel has both).
//
// Thread-safety: the caller holds the device lock.
// Invariant: created = used elsewhere + free here, in bytes; a slot that is
// not null points to memory that lists it (CheckInvariants).
// Fails: kOutOfMemory when the limit or the driver has no room; as the driver
// does.
#ifndef STRATALLOC_ALLOCATOR_CUDA_HANDLE_POOL_H_
#define STRATALLOC_ALLOCATOR_CUDA_HANDLE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "allocator/cuda/device.h"
#include "allocator/cuda/shared_descriptors.h"

namespace stratalloc {

// One physical handle. Owned by the HandlePool that created it.
struct PhysicalMemory {
  struct Mapping {
    Address address;
    PhysicalMemory** slot;  // the position's pointer to this memory
    bool granted = false;   // may be used without another grant
  };

  PhysicalHandle handle = kNoHandle;
  Bytes bytes = 0;
  bool free = false;
  // Streams (bits) that may still use it through an address it was put back
  // from. Meaningful while free.
  std::uint64_t used_streams = 0;
  std::uint64_t put = 0;  // number of the Put that freed it
  Address used_at = 0;    // while not free; 0 if it is only taken
  std::vector<Mapping> mappings;
  PhysicalMemory* next = nullptr;  // free list, freed last first
  PhysicalMemory* prev = nullptr;
};

// Has everything enqueued on these streams (bits) run? Must not wait. Of no
// stream at all: may memory go back to the driver now? (Not during a capture.)
using StreamsIdle = std::function<bool(std::uint64_t streams)>;

class HandlePool {
 public:
  explicit HandlePool(Device device) : device_(device) {}
  ~HandlePool();

  // Free memory that streams other than `own` have finished with, or new
  // memory, while used_bytes() stays within `limit`. Free memory beyond the
  // limit, which may have fallen, is released; for new memory that of other
  // sizes is, where the created bytes would pass the limit.
  Result<PhysicalMemory*> Take(Bytes bytes, Bytes limit, std::uint64_t own,
                               const StreamsIdle& idle);
  // This memory, if it is free and streams other than `own` have finished
  // with it.
  bool TakeBack(PhysicalMemory* memory, std::uint64_t own,
                const StreamsIdle& idle);
  // Keeps memory that is used nowhere any more, but for work on the streams
  // `used_streams`. Never fails.
  void Put(PhysicalMemory* memory, std::uint64_t used_streams);

  // Without access rights: those are granted by ranges, and noted here. `*slot`
  // becomes `memory`. REQUIRES: *slot is null.
  Status Map(Address address, PhysicalMemory* memory, PhysicalMemory** slot);
  void NoteGranted(PhysicalMemory** slot) { MappingOf(slot).granted = true; }
  // A mapping that was not is of no use: rights were refused, and then the
  // driver refused to unmap it, too. REQUIRES: *slot is not null.
  bool IsGranted(PhysicalMemory** slot) const {
    return MappingOf(slot).granted;
  }
  // `*slot` becomes null. REQUIRES: no work uses that address. Where the driver
  // refuses, the mapping stays one of the memory's: nothing is lost by that but
  // that a stray access would not fault.
  Status Unmap(PhysicalMemory** slot) { return Unmap(std::vector{slot}); }
  // So with many, one call for each run of adjacent addresses, because a call
  // costs 34 us however long the run is. The slots of a run that the driver
  // refuses stay as they are; the first such answer is returned.
  Status Unmap(std::vector<PhysicalMemory**> slots);

  // Everything on the streams `used_streams` that was enqueued before Put
  // number `until` has run.
  void Fenced(std::uint64_t used_streams, std::uint64_t until);
  // The streams that free memory may still be used by.
  std::uint64_t used_streams() const;
  std::uint64_t last_put() const { return last_put_; }

  // The memory's file descriptor for other processes, made once and closed
  // when the memory goes back to the driver: the same memory always travels
  // under the same number. Kept here because it must end with the handle.
  Result<int> Descriptor(const PhysicalMemory& memory);
  bool HasDescriptor(const PhysicalMemory& memory) const {
    return descriptors_.contains(memory.handle);
  }
  // Closes those that `keep` does not name: memory that nobody else has mapped.
  // Sent again, it travels under another number.
  void CloseDescriptors(const std::set<PhysicalHandle>& keep);
  // Of all devices' pools in the process.
  static std::size_t OpenDescriptors() { return SharedDescriptors::Count(); }
  // Gives free memory whose streams are idle back to the driver, if it may go
  // now, until no more than `keep` is created; returns the bytes. What the
  // driver does not take stays free here.
  Bytes ReleaseFree(const StreamsIdle& idle, Bytes keep = 0);
  // Has the driver had no memory for us since this was asked last?
  bool TakeRefused() { return std::exchange(refused_, false); }

  Bytes created_bytes() const { return created_bytes_; }
  Bytes free_bytes() const { return free_bytes_; }
  // Mapped, or about to be.
  Bytes used_bytes() const { return created_bytes_ - free_bytes_; }
  bool CheckInvariants() const;

 private:
  void Unlink(PhysicalMemory* memory);
  static PhysicalMemory::Mapping& MappingOf(PhysicalMemory** slot);

  Device device_;
  std::map<Bytes, PhysicalMemory*> free_;  // heads
  std::map<PhysicalHandle, int> descriptors_;
  Bytes created_bytes_ = 0;
  Bytes free_bytes_ = 0;
  std::uint64_t last_put_ = 0;
  bool refused_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_HANDLE_POOL_H_
