// SPDX-License-Identifier: Apache-2.0
//
// host_memory.h: which host memory is pinned, and by which call. Allocations
// get pages of their own, given back to the system when freed, so that a late
// use faults instead of reading somebody else's bytes. The system is asked to
// keep no room for them (`reserve` false) when device memory is phantom: copies
// then never touch them.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOST_MEMORY_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOST_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct HostRange {
  uint64_t bytes = 0;         // as asked for
  uint64_t mapped_bytes = 0;  // of an allocation, whole pages; 0: registered
  unsigned flags = 0;
};

class HostMemory {
 public:
  Status Allocate(uint64_t bytes, unsigned flags, uint64_t* address,
                  bool reserve = true);
  // kInvalidValue unless `address` came from Allocate.
  Status Free(uint64_t address, const std::string& by = "cudaFreeHost");
  // kInvalidValue: empty, or overlaps what Allocate made;
  // kHostMemoryAlreadyRegistered: overlaps a registered range.
  Status Register(uint64_t address, uint64_t bytes, unsigned flags);
  // kOk if `address` came from Register; kInvalidValue inside of a range, or if
  // Allocate made it; else kHostMemoryNotRegistered.
  Status Registered(uint64_t address) const;
  Status Unregister(uint64_t address,
                    const std::string& by = "cudaHostUnregister");
  // What gave back the range that began here; empty if nothing did, or it is
  // pinned again.
  std::string FreedBy(uint64_t address) const {
    auto found = freed_.find(address);
    return found == freed_.end() ? "" : found->second;
  }

  // The pinned range around the address, or nullptr.
  const HostRange* Find(uint64_t address, uint64_t* start) const;
  bool IsPinned(uint64_t address, uint64_t bytes) const;

  // Allocated or registered, in bytes as asked for.
  uint64_t pinned_bytes() const { return pinned_bytes_; }

  const std::map<uint64_t, HostRange>& ranges() const { return ranges_; }

 private:
  void NoteFreed(uint64_t address, const std::string& by);

  std::map<uint64_t, HostRange> ranges_;
  std::unordered_map<uint64_t, std::string> freed_;
  uint64_t pinned_bytes_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOST_MEMORY_H_
