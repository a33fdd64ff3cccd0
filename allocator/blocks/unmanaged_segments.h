// SPDX-License-Identifier: Apache-2.0
// The segments of one device whose memory comes and goes in one piece
// (unmanaged_memory.h): which pools have such, the segments themselves, and
// native's rules against memory stranded beside a small block. Here, and only
// here, they matter: nothing of such a segment can go back while a block in it
// lives.
//
// Getting memory takes three steps, because its source is asked without the
// lock: BeginFetch, Fetch::Ask, and Add or EndFetch. What is fetched counts
// against the limit from the first step on, so that two threads cannot pass it
// together.
//
// Thread-safety: the caller holds the device lock, but for Fetch::Ask and
// `some`. Lifetime: the device's. Fails: as the source does (memory_source.h).
// Invariant: an unmanaged segment is in the heap while its memory is here.
#ifndef STRATALLOC_ALLOCATOR_PLAIN_SEGMENTS_H_
#define STRATALLOC_ALLOCATOR_PLAIN_SEGMENTS_H_

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "allocator/base/result.h"
#include "allocator/cuda/device.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/block_traces.h"
#include "allocator/memory/device_limit.h"
#include "allocator/memory/page_store.h"
#include "allocator/memory/unmanaged_memory.h"
#include "allocator/streams/private_pools.h"

namespace stratalloc {

class UnmanagedSegments {
 public:
  struct Parts {
    const Device& device;
    const PrivatePools& private_pools;
    const DeviceLimit& limit;
    BlockHeap& heap;
    PageStore& pages;
    BlockTraces& traces;
    SegmentStats& stats;
  };
  // Memory that is asked for. No source: there is nothing to ask.
  struct Fetch {
    std::shared_ptr<const MemorySource> source;
    Bytes bytes = 0;
    PoolKey key{};
    Result<Address> Ask() const { return source->allocate(bytes, key.stream); }
  };

  // `tiering`: what may leave comes by handles, whatever the settings say.
  UnmanagedSegments(const Parts& parts, bool tiering);

  // ---- whose memory comes so -----------------------------------------------

  // The private pool's own allocator; cudaMalloc on a device without virtual
  // memory management, and where the program wants unmanaged segments for what
  // never leaves. nullptr: it comes by handles.
  std::shared_ptr<const MemorySource> SourceOf(const PoolKey& key) const;
  bool IsCudaMalloc(const PoolKey& key) const {
    return SourceOf(key) == cuda_malloc_;
  }
  // Is there no virtual memory management, and all memory of this kind?
  bool has_all() const { return own_source_ != nullptr; }

  // ---- they come -----------------------------------------------------------

  // No source also if the limit has no room.
  Fetch BeginFetch(const PoolKey& key, Bytes size);
  void EndFetch(const Fetch& fetch);  // nothing came
  // Its one block, free. `address`: what the source answered.
  Block* Add(Pool& pool, const Fetch& fetch, Address address);

  // ---- they go -------------------------------------------------------------

  // Takes away those that were given up. The caller destroys what it gets
  // after the lock: it may wait for the whole device.
  std::vector<std::unique_ptr<UnmanagedMemory>> TakeEmpty();
  // Native's garbage collection: is it on? Ages are counted in searches, so
  // that then every search must be seen.
  bool CollectsOld() const;
  // Bytes by which they are above the threshold of garbage collection; 0 if it
  // is off.
  Bytes AboveThreshold() const;
  // Free ones of large pools that have not been used for long, `wanted` bytes
  // if there are so many. REQUIRES: bins are empty.
  std::vector<HandleRef> Old(Bytes wanted) const;
  // A large pool is searched: the clock of ages, as Block::freed_at has it.
  void NoteSearch() { ++searches_; }
  std::uint32_t searches() const { return searches_; }

  // ---- what there is -------------------------------------------------------

  // The pool's best fit; of unmanaged segments only blocks that native would
  // take for `size` while max_split_size is set.
  static Block* BestFit(const Pool& pool, Bytes size);
  bool Contains(Address address) const;
  bool some() const { return count_.load(std::memory_order_acquire) != 0; }
  // Do the statistics of free parts of unmanaged segments need CountInactive?
  bool MayBeInactive() const;
  // Brings them up to date. REQUIRES: bins are empty.
  void CountInactive();

 private:
  const Parts p_;
  const bool tiering_;
  const std::shared_ptr<const MemorySource> cuda_malloc_;
  // The same, where there is no virtual memory management.
  const std::shared_ptr<const MemorySource> own_source_;
  std::map<Address, std::unique_ptr<UnmanagedMemory>> memory_;
  std::atomic<int> count_{0};  // memory_.size(), to look at without lock
  std::uint32_t searches_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_PLAIN_SEGMENTS_H_
