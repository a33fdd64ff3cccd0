// SPDX-License-Identifier: Apache-2.0
// The compact counters against native's own arithmetic, one Stat each.
#include "allocator/heap/live_counters.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace stratalloc {
namespace {

struct Reference {
  DeviceStats stats;

  void HandOut(PoolKind kind, Bytes size, Bytes requested) {
    stats.allocation.For(kind, [](Stat& s) { s.Increase(1); });
    stats.active.For(kind, [](Stat& s) { s.Increase(1); });
    stats.allocated_bytes.For(kind, [&](Stat& s) { s.Increase(size); });
    stats.active_bytes.For(kind, [&](Stat& s) { s.Increase(size); });
    stats.requested_bytes.For(kind, [&](Stat& s) { s.Increase(requested); });
  }
  static void Fall(Stat& s, Bytes size, Bytes here) {
    s.freed += static_cast<std::int64_t>(size);
    s.Move(-static_cast<std::int64_t>(here));
  }
  void Free(PoolKind kind, Bytes size, LiveCounters::OnDevice here) {
    stats.allocation.For(kind, [](Stat& s) { s.Decrease(1); });
    stats.allocated_bytes.For(kind, [&](Stat& s) { Fall(s, size, here.size); });
  }
  void Complete(PoolKind kind, Bytes size, Bytes requested,
                LiveCounters::OnDevice here) {
    stats.active.For(kind, [](Stat& s) { s.Decrease(1); });
    stats.active_bytes.For(kind, [&](Stat& s) { Fall(s, size, here.size); });
    stats.requested_bytes.For(
        kind, [&](Stat& s) { Fall(s, requested, here.requested); });
  }
  void Move(PoolKind kind, std::int64_t allocated, std::int64_t active,
            std::int64_t requested) {
    stats.allocated_bytes.For(kind, [&](Stat& s) { s.Move(allocated); });
    stats.active_bytes.For(kind, [&](Stat& s) { s.Move(active); });
    stats.requested_bytes.For(kind, [&](Stat& s) { s.Move(requested); });
  }
  void ResetPeaks() {
    for (StatArray* a : Arrays(stats)) {
      for (Stat& s : a->stats) s.ResetPeak();
    }
  }
  void ResetAccumulated() {
    for (StatArray* a : Arrays(stats)) {
      for (Stat& s : a->stats) s.ResetAccumulated();
    }
  }
  static std::vector<StatArray*> Arrays(DeviceStats& s) {
    return {&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes,
            &s.requested_bytes};
  }
};

TEST(LiveCounters, EqualNativesArithmeticAtEveryMoment) {
  struct Live {
    PoolKind kind;
    Bytes size, requested;
    LiveCounters::OnDevice here;
  };
  LiveCounters counters;
  Reference reference;
  std::vector<Live> allocated, pending;
  std::mt19937_64 random(3);
  const auto take = [&](std::vector<Live>& from) {
    std::swap(from[random() % from.size()], from.back());
    const Live live = from.back();
    from.pop_back();
    return live;
  };
  for (int i = 0; i < 20'000; ++i) {
    const auto dice = random() % 16;
    if (dice < 7) {
      const Bytes requested = random() % (4 * kMiB) + 1;
      const Bytes size = RoundSize(requested);
      const PoolKind kind = KindOf(size);
      counters.HandOut(kind, size, requested);
      reference.HandOut(kind, size, requested);
      allocated.push_back({kind, size, requested, {size, requested}});
    } else if (dice < 10 && !allocated.empty()) {
      const Live b = take(allocated);
      if (b.here.size == b.size) {
        counters.FreeAtOnce(b.kind, b.size, b.requested);
        reference.Free(b.kind, b.size, b.here);
        reference.Complete(b.kind, b.size, b.requested, b.here);
      } else {
        counters.Free(b.kind, b.size, b.here);
        reference.Free(b.kind, b.size, b.here);
        pending.push_back(b);
      }
    } else if (dice < 12 && !allocated.empty()) {
      pending.push_back(take(allocated));
      const Live& b = pending.back();
      counters.Free(b.kind, b.size, b.here);
      reference.Free(b.kind, b.size, b.here);
    } else if (dice < 14 && !pending.empty()) {
      const Live b = take(pending);
      counters.Complete(b.kind, b.size, b.requested, b.here);
      reference.Complete(b.kind, b.size, b.requested, b.here);
    } else if (dice == 14 && !(allocated.empty() && pending.empty())) {
      // Half of a block leaves the device, or all of it returns.
      auto& from = allocated.empty() || (!pending.empty() && random() % 2 == 0)
                       ? pending
                       : allocated;
      Live& b = from[random() % from.size()];
      const auto then = b.here;
      if (b.here.size == b.size) {
        b.here = {b.size / 2, b.requested / 2};
      } else {
        b.here = {b.size, b.requested};
      }
      const auto active = static_cast<std::int64_t>(b.here.size - then.size);
      const auto requested =
          static_cast<std::int64_t>(b.here.requested - then.requested);
      const std::int64_t live = &from == &allocated ? active : 0;
      counters.Move(b.kind, live, active, requested);
      reference.Move(b.kind, live, active, requested);
    } else if (dice == 15 && random() % 50 == 0) {
      if (random() % 2 == 0) {
        counters.ResetPeaks();
        reference.ResetPeaks();
      } else {
        counters.ResetAccumulated();
        reference.ResetAccumulated();
      }
    }
    DeviceStats got;
    counters.Fill(&got);
    const auto ours = Reference::Arrays(got);
    const auto native = Reference::Arrays(reference.stats);
    for (std::size_t a = 0; a < ours.size(); ++a) {
      for (int k = 0; k < 3; ++k) {
        const Stat& x = ours[a]->stats[k];
        const Stat& y = native[a]->stats[k];
        ASSERT_EQ(x.current, y.current) << "step " << i << " array " << a;
        ASSERT_EQ(x.peak, y.peak) << "step " << i << " array " << a;
        ASSERT_EQ(x.allocated, y.allocated) << "step " << i << " array " << a;
        ASSERT_EQ(x.freed, y.freed) << "step " << i << " array " << a;
      }
    }
    ASSERT_EQ(
        counters.allocated_bytes(),
        static_cast<Bytes>(reference.stats.allocated_bytes.stats[0].current));
  }
}

}  // namespace
}  // namespace stratalloc
