// SPDX-License-Identifier: Apache-2.0
// The host tier: pinned buffers of exactly the handle sizes, under a hard
// budget. Memory comes from slabs: mmap, huge pages where offered, touched in
// parallel, registered with CUDA in steps of at most 1 GiB. Slabs are made on
// demand; a buffer is a slot of one.
//
// Thread-safety: all methods (kTier lock).
// Fails: kHostOutOfMemory when the budget is spent or the host cannot pin
// (RLIMIT_MEMLOCK, cgroup): the message says which and what to set.
// Lifetime: as long as the process; Trim() gives empty slabs back.
// Invariants: used <= reserved <= budget, used <= peak <= reserved_peak <=
// budget; sum of live buffers = used.
#ifndef STRATALLOC_TIERING_HOST_HOST_TIER_H_
#define STRATALLOC_TIERING_HOST_HOST_TIER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"
#include "allocator/base/result.h"
#include "allocator/cuda/device.h"

namespace stratalloc {

struct HostBuffer {
  void* data = nullptr;  // page aligned, pinned; nullptr = no buffer
  Bytes bytes = 0;

  explicit operator bool() const { return data != nullptr; }
};

class HostTier {
 public:
  struct Options {
    Bytes budget = 0;
    Device device;  // the one whose context registers the slabs
    // Somebody wants exactly that much: only a memory cgroup says no before the
    // kernel does, not what the machine has available just now.
    bool is_given = false;
    std::string root = {};  // of /proc and /sys/fs/cgroup; "" = /
  };
  explicit HostTier(Options options);
  ~HostTier();  // for tests; the product's tier is never destroyed

  Result<HostBuffer> Allocate(Bytes bytes);
  // Gives a buffer back; it must come from Allocate. Never fails.
  void Free(HostBuffer buffer);
  // Unregisters and unmaps slabs without live buffers; returns their bytes.
  Bytes Trim();

  Bytes budget() const { return options_.budget; }
  Bytes used() const;           // bytes in live buffers
  Bytes peak() const;           // most that `used` ever was
  Bytes reserved() const;       // bytes in slabs, which are pinned
  Bytes reserved_peak() const;  // most that `reserved` ever was
  Status CheckInvariants() const;

 private:
  struct State;
  Options options_;
  std::unique_ptr<State> state_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_HOST_HOST_TIER_H_
