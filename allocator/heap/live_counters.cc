// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/live_counters.h"

namespace stratalloc {

void LiveCounters::RaisePeaks(Live& live) {
  live.peak.count = std::max(live.peak.count, live.now.count);
  live.peak.bytes = std::max(live.peak.bytes, live.now.bytes);
  live.peak.requested = std::max(live.peak.requested, live.now.requested);
  live.active_count_peak =
      std::max(live.active_count_peak, live.now.count + live.pending_count);
  live.active_bytes_peak =
      std::max(live.active_bytes_peak, live.now.bytes + live.pending_bytes);
}

void LiveCounters::ResetPeaks() {
  for (Live& live : live_) {
    live.peak = live.now;
    live.active_count_peak = live.now.count + live.pending_count;
    live.active_bytes_peak = live.now.bytes + live.pending_bytes;
  }
}

void LiveCounters::ResetAccumulated() {
  for (int kind = 0; kind < kPoolKinds; ++kind) {
    handed_out_[kind] = freed_[kind] = completed_[kind] = Tally{};
    freed_at_once_[kind] = Tally{};
  }
}

void LiveCounters::Fill(DeviceStats* stats) const {
  // [kAll] and then the kinds, as in live_.
  Tally out[1 + kPoolKinds], freed[1 + kPoolKinds], completed[1 + kPoolKinds];
  for (int kind = 0; kind < kPoolKinds; ++kind) {
    for (int i : {kAll, kAll + 1 + kind}) {
      Add(out[i], handed_out_[kind]);
      Add(freed[i], freed_[kind]);
      Add(freed[i], freed_at_once_[kind]);
      Add(completed[i], completed_[kind]);
      Add(completed[i], freed_at_once_[kind]);
    }
  }
  for (int i = 0; i < 1 + kPoolKinds; ++i) {
    const Live& live = live_[i];
    const Tally& o = out[i];
    const Tally& f = freed[i];
    const Tally& c = completed[i];
    stats->allocation.stats[i] = {live.now.count, live.peak.count, o.count,
                                  f.count};
    stats->allocated_bytes.stats[i] = {live.now.bytes, live.peak.bytes, o.bytes,
                                       f.bytes};
    stats->active.stats[i] = {live.now.count + live.pending_count,
                              live.active_count_peak, o.count, c.count};
    stats->active_bytes.stats[i] = {live.now.bytes + live.pending_bytes,
                                    live.active_bytes_peak, o.bytes, c.bytes};
    stats->requested_bytes.stats[i] = {live.now.requested, live.peak.requested,
                                       o.requested, c.requested};
  }
}

}  // namespace stratalloc
