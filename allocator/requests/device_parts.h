// SPDX-License-Identifier: Apache-2.0
// The lock of one device and the parts below it, connected: who knows whom is
// the list at the end. Each part says in its own header what it promises; what
// DeviceAllocator, and those who answer for it, do is to take the lock and ask
// them.
//
// Thread-safety: what is guarded by `mutex` needs it, which nobody outside this
// room takes. Lifetime: the device's.
// Invariant: a part calls only parts that are declared before it, so that none
// is asked for something while it is itself at work; SegmentStats and History,
// which call nobody, stand where their cache lines are wanted.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_PARTS_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_PARTS_H_

#include <algorithm>
#include <atomic>

#include "allocator/base/condition.h"
#include "allocator/base/mutex.h"
#include "allocator/blocks/arrivals.h"
#include "allocator/blocks/block_pins.h"
#include "allocator/blocks/checkpoints.h"
#include "allocator/blocks/free_handles.h"
#include "allocator/blocks/live_blocks.h"
#include "allocator/blocks/placement.h"
#include "allocator/blocks/recent_accounts.h"
#include "allocator/blocks/residency.h"
#include "allocator/blocks/unmanaged_segments.h"
#include "allocator/cuda/device.h"
#include "allocator/events/move_counts.h"
#include "allocator/heap/block_heap.h"
#include "allocator/heap/block_traces.h"
#include "allocator/heap/history.h"
#include "allocator/heap/live_counters.h"
#include "allocator/memory/device_limit.h"
#include "allocator/memory/handle_table.h"
#include "allocator/memory/page_store.h"
#include "allocator/state/slow_reasons.h"
#include "allocator/streams/captures.h"
#include "allocator/streams/deferred_frees.h"
#include "allocator/streams/event_pool.h"
#include "allocator/streams/pool_routes.h"
#include "allocator/streams/private_pools.h"
#include "allocator/values/stats.h"

namespace stratalloc {

struct DeviceOptions {
  bool tiering = true;
  Bytes gpu_limit = 0;  // 0 = the card's memory
  // What of it may lie below; 0 = no such tier. Handles are not larger than
  // these want them.
  Bytes host_budget = 0;
  Bytes disk_budget = 0;
  double emergency_threshold = 0.95;
  // Address space of a segment, at least; smaller ones meet sooner.
  Bytes segment_least = 64 * kMiB;
};

struct DeviceParts {
  // A new segment is an eighth of the card, so that a handful serve a pool and
  // hundreds fit into a region; never below segment_least.
  static constexpr Bytes kSegmentFraction = 8;

  DeviceParts(Device opened, const DeviceOptions& said, Bytes card,
              HandleTable reserved)
      : device(opened), options(said), capacity(card), table(reserved) {}
  DeviceParts(const DeviceParts&) = delete;
  DeviceParts& operator=(const DeviceParts&) = delete;

  const Device device;
  const DeviceOptions options;
  // Nothing leaves the device any more, though blocks lie as they did: by
  // options.tiering.
  std::atomic<bool> tiering_ended{false};
  const Bytes capacity;
  HandleTable table;
  StreamTable streams;
  std::atomic<std::uint32_t> use_clock{HandleUse::kTick};
  MoveCounts moves;

  // What a malloc or free out of a bin touches, together and apart from what
  // only the whole way writes.
  alignas(64) Mutex mutex{LockRank::kDevice};
  SlowReasons slow GUARDED_BY(mutex);
  Bytes pressure_at GUARDED_BY(mutex) = 0;  // OnPressure above it
  LiveCounters live GUARDED_BY(mutex);
  BlockHeap heap GUARDED_BY(mutex){table, stats, history};
  BlockPins pins GUARDED_BY(mutex){heap};
  RecentAccounts accounts GUARDED_BY(mutex){device.index()};

  SegmentStats stats GUARDED_BY(mutex);
  History history GUARDED_BY(mutex);
  PageStore pages GUARDED_BY(mutex){device};
  DeviceLimit limit GUARDED_BY(mutex){device, capacity, options.gpu_limit};
  PoolRoutes routes{device};  // the device lock but for MayCapture, MayRoute
  PrivatePools private_pools GUARDED_BY(mutex){device, routes};
  EventPool events GUARDED_BY(mutex){device};
  DeferredFrees frees GUARDED_BY(mutex){device, events};
  BlockTraces traces GUARDED_BY(mutex){history, heap, device.index()};
  // The device lock but for Some.
  Captures captures{{device, streams, routes, private_pools, frees, slow}};
  Residency residency GUARDED_BY(mutex){
      {device, heap, pages, events, traces, live, stats, moves}};
  Arrivals arrivals GUARDED_BY(mutex){residency, captures, slow};
  // The device lock but for `some`.
  UnmanagedSegments unmanaged{
      {device, private_pools, limit, heap, pages, traces, stats},
      options.tiering};
  LiveBlocks blocks GUARDED_BY(mutex){
      {heap, live, stats, history, traces, accounts, pins, private_pools,
       captures, frees, residency, unmanaged, streams, use_clock, slow}};
  FreeHandles free_handles GUARDED_BY(mutex){
      {heap, pages, traces, stats, streams, private_pools, captures, blocks}};
  Placement placement GUARDED_BY(mutex){
      {table, heap, pages, traces, stats, private_pools, captures, unmanaged,
       blocks, free_handles},
      {options.tiering,
       std::max(options.segment_least, capacity / kSegmentFraction)}};
  Checkpoints checkpoints GUARDED_BY(mutex){{heap, private_pools, blocks}};

  // Evictions that record events without the lock; routes wait for their end.
  int fencing GUARDED_BY(mutex) = 0;
  Condition fenced;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_PARTS_H_
