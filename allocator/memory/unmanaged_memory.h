// SPDX-License-Identifier: Apache-2.0
// Memory that comes in one piece and goes back in one piece: cudaMalloc's,
// where the device has no virtual memory management, and what somebody else
// made, for a MemPool with an allocator of its own (NCCL, a plugin).
//
//   MemorySource   how to get memory and give it back
//   UnmanagedMemory    one piece of it, as a segment: a region of a single
//   handle
//                  that is resident as long as it lives, and never evicted
//
// A source may run code that is not ours: it is called without any lock, except
// that its own end (the last UnmanagedMemory or pool that names it) may come
// under the device lock. It must not allocate through stratalloc.
//
// Lifetime: an UnmanagedMemory gives its memory back when it is destroyed,
// which must be without the device lock. Fails: `allocate` says kOutOfMemory,
// and the request goes on to look elsewhere, or another error, which ends it.
#ifndef STRATALLOC_ALLOCATOR_PLAIN_MEMORY_H_
#define STRATALLOC_ALLOCATOR_PLAIN_MEMORY_H_

#include <memory>
#include <utility>

#include "allocator/base/bytes.h"
#include "allocator/memory/handle_table.h"
#include "allocator/values/memory_source.h"

namespace stratalloc {

class UnmanagedMemory {
 public:
  UnmanagedMemory(std::shared_ptr<const MemorySource> source, Address address,
                  Bytes bytes, PoolKind kind)
      : source_(std::move(source)) {
    entry_.state.store(HandleState::kResident);
    region_ = {address, bytes, bytes, /*evictable=*/false, kind, &entry_};
  }
  UnmanagedMemory(const UnmanagedMemory&) = delete;
  UnmanagedMemory& operator=(const UnmanagedMemory&) = delete;
  ~UnmanagedMemory() { source_->free(region_.base); }

  HandleRegion& region() { return region_; }

 private:
  const std::shared_ptr<const MemorySource> source_;
  HandleEntry entry_;
  HandleRegion region_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_PLAIN_MEMORY_H_
