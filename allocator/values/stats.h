// SPDX-License-Identifier: Apache-2.0
// Counters of one device with native's meanings (glossary: README.md).
// Eviction lowers `current` of the byte counts and restore raises it; the
// cumulative `allocated` and `freed` do not move then. The device lock guards
// all of it.
#ifndef STRATALLOC_ALLOCATOR_VALUES_STATS_H_
#define STRATALLOC_ALLOCATOR_VALUES_STATS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "allocator/values/pool_id.h"
#include "allocator/values/size_rules.h"

namespace stratalloc {

struct Stat {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void Increase(Bytes n) {
    allocated += static_cast<std::int64_t>(n);
    Move(static_cast<std::int64_t>(n));
  }
  void Decrease(Bytes n) {
    freed += static_cast<std::int64_t>(n);
    Move(-static_cast<std::int64_t>(n));
  }
  // current only: bytes left or returned to the device.
  void Move(std::int64_t n) {
    current += n;
    peak = std::max(peak, current);
  }
  void ResetPeak() { peak = current; }
  void ResetAccumulated() { allocated = freed = 0; }
};

// [0] all, [1] small pool, [2] large pool.
struct StatArray {
  std::array<Stat, 3> stats;

  template <typename F>
  void For(PoolKind kind, F&& f) {
    f(stats[0]);
    f(stats[1 + static_cast<int>(kind)]);
  }
};

// What moves when memory is mapped, events are waited for or a request fails.
struct SegmentStats {
  StatArray segment, reserved_bytes, inactive_split, inactive_split_bytes;
  std::int64_t num_alloc_retries = 0, num_ooms = 0;
  Stat oversize_allocations, oversize_segments;
  std::int64_t num_sync_all_streams = 0, num_device_alloc = 0,
               num_device_free = 0, num_oom_rejections = 0;
  // Of `reserved_bytes` what private pools have or had; as native's, an entry
  // stays when its pool has gone.
  std::map<PoolId, StatArray> reserved_by_private_pools;

  // Memory came to a pool of `owner` or left it.
  void Reserve(PoolId owner, PoolKind kind, Bytes n) {
    ForReserved(owner, kind, [n](Stat& s) { s.Increase(n); });
  }
  void Unreserve(PoolId owner, PoolKind kind, Bytes n) {
    ForReserved(owner, kind, [n](Stat& s) { s.Decrease(n); });
  }

  template <typename F>
  void ForEachStat(F&& f) {
    for (StatArray* a :
         {&segment, &reserved_bytes, &inactive_split, &inactive_split_bytes}) {
      for (Stat& s : a->stats) f(s);
    }
    f(oversize_allocations);
    f(oversize_segments);
    for (auto& [pool, reserved] : reserved_by_private_pools) {
      for (Stat& s : reserved.stats) f(s);
    }
  }
  void ResetPeaks() {
    ForEachStat([](Stat& s) { s.ResetPeak(); });
  }
  void ResetAccumulated() {
    ForEachStat([](Stat& s) { s.ResetAccumulated(); });
    num_alloc_retries = num_ooms = num_sync_all_streams = 0;
    num_device_alloc = num_device_free = num_oom_rejections = 0;
  }

 private:
  template <typename F>
  void ForReserved(PoolId owner, PoolKind kind, F&& f) {
    reserved_bytes.For(kind, f);
    if (owner.is_private()) reserved_by_private_pools[owner].For(kind, f);
  }
};

// Everything, as it is read.
struct DeviceStats : SegmentStats {
  StatArray allocation, active;  // counts of blocks
  StatArray allocated_bytes, active_bytes, requested_bytes;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_STATS_H_
