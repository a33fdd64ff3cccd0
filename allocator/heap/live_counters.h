// SPDX-License-Identifier: Apache-2.0
// The five counters that every malloc and free moves: allocation, active,
// allocated_bytes, active_bytes and requested_bytes, each for all blocks and
// for the pool's kind, with native's values at every moment.
//
// Kept as few numbers as tell all of them, because this is most of what a
// malloc writes:
//   * active = allocated + pending, and pending is nearly always nothing;
//   * cumulative counts are per kind, "all" is their sum; allocation and
//     active are handed out together, so one count serves both;
//   * a new peak of allocated is a new peak of active if nothing is pending,
//     and without one active has none either (active >= allocated always,
//     resets included).
//
// Device lock for everything here.
#ifndef STRATALLOC_ALLOCATOR_HEAP_LIVE_COUNTERS_H_
#define STRATALLOC_ALLOCATOR_HEAP_LIVE_COUNTERS_H_

#include <algorithm>
#include <cstdint>

#include "allocator/values/size_rules.h"
#include "allocator/values/stats.h"

namespace stratalloc {

class LiveCounters {
 public:
  // Bytes of a block that are on the device: all but what was evicted.
  struct OnDevice {
    Bytes size, requested;
  };

  void HandOut(PoolKind kind, Bytes size, Bytes requested) {
    const Tally block = Of(size, requested);
    Add(handed_out_[Index(kind)], block);
    HandOut(live_[kAll], block);
    HandOut(live_[kAll + 1 + Index(kind)], block);
  }
  // The caller gave it up; it stays active until Complete.
  void Free(PoolKind kind, Bytes size, OnDevice here) {
    freed_[Index(kind)].count += 1;
    freed_[Index(kind)].bytes += Signed(size);
    for (Live* live : {&live_[kAll], &live_[kAll + 1 + Index(kind)]}) {
      live->now.count -= 1;
      live->now.bytes -= Signed(here.size);
      live->pending_count += 1;
      live->pending_bytes += Signed(here.size);
    }
  }
  // Its streams are done with it.
  void Complete(PoolKind kind, Bytes size, Bytes requested, OnDevice here) {
    Add(completed_[Index(kind)], Of(size, requested));
    for (Live* live : {&live_[kAll], &live_[kAll + 1 + Index(kind)]}) {
      live->pending_count -= 1;
      live->pending_bytes -= Signed(here.size);
      live->now.requested -= Signed(here.requested);
    }
  }
  // Free and Complete of a block that is wholly on the device.
  void FreeAtOnce(PoolKind kind, Bytes size, Bytes requested) {
    const Tally block = Of(size, requested);
    Add(freed_at_once_[Index(kind)], block);
    Subtract(live_[kAll].now, block);
    Subtract(live_[kAll + 1 + Index(kind)].now, block);
  }
  // Bytes that left the device (negative) or returned.
  void Move(PoolKind kind, std::int64_t allocated, std::int64_t active,
            std::int64_t requested) {
    for (Live* live : {&live_[kAll], &live_[kAll + 1 + Index(kind)]}) {
      live->now.bytes += allocated;
      live->now.requested += requested;
      live->pending_bytes += active - allocated;
      RaisePeaks(*live);
    }
  }

  Bytes allocated_bytes() const {
    return static_cast<Bytes>(live_[kAll].now.bytes);
  }
  // Blocks given up so far, since the last ResetAccumulated.
  std::int64_t freed_count() const {
    std::int64_t count = 0;
    for (int kind = 0; kind < kPoolKinds; ++kind) {
      count += freed_at_once_[kind].count + freed_[kind].count;
    }
    return count;
  }
  void ResetPeaks();
  void ResetAccumulated();
  void Fill(DeviceStats* stats) const;

 private:
  struct Tally {
    std::int64_t count = 0, bytes = 0, requested = 0;
  };
  struct Live {
    Tally now;  // allocated; `requested` falls with active
    Tally peak;
    std::int64_t pending_count = 0, pending_bytes = 0;
    std::int64_t active_count_peak = 0, active_bytes_peak = 0;
  };
  static constexpr int kAll = 0;

  static int Index(PoolKind kind) { return static_cast<int>(kind); }
  static std::int64_t Signed(Bytes n) { return static_cast<std::int64_t>(n); }
  static Tally Of(Bytes size, Bytes requested) {
    return {1, Signed(size), Signed(requested)};
  }
  static void Add(Tally& to, const Tally& block) {
    to.count += block.count;
    to.bytes += block.bytes;
    to.requested += block.requested;
  }
  static void Subtract(Tally& from, const Tally& block) {
    from.count -= block.count;
    from.bytes -= block.bytes;
    from.requested -= block.requested;
  }
  static void HandOut(Live& live, const Tally& block) {
    Add(live.now, block);
    const Tally& now = live.now;
    const Tally& peak = live.peak;
    // One branch for five comparisons: a sign bit is set if a peak is passed.
    const std::int64_t passed =
        (peak.count - now.count) | (peak.bytes - now.bytes) |
        (peak.requested - now.requested) | -live.pending_count;
    if (__builtin_expect(passed < 0, 0)) RaisePeaks(live);
  }
  static void RaisePeaks(Live& live);

  Live live_[1 + kPoolKinds];
  Tally handed_out_[kPoolKinds];
  Tally freed_at_once_[kPoolKinds];
  Tally freed_[kPoolKinds];  // put off; its `requested` is unused
  Tally completed_[kPoolKinds];
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_HEAP_LIVE_COUNTERS_H_
