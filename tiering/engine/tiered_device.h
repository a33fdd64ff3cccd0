// SPDX-License-Identifier: Apache-2.0
// What the engine keeps of one device: its copy streams, its checksum kernel,
// under which pressure it is, and what people were told of it. One that cannot
// take part is kept as well, with the reason.
//
// Thread-safety: the atomics from any thread. What Prepare sets is fixed once
// the device can be found; the rest is the holder's of the device's arbiter.
// Lifetime: as long as the engine.
// Fails: Prepare as the driver does, or for want of memory; what it had made
// by then goes with Refuse and Close.
#ifndef STRATALLOC_TIERING_ENGINE_TIERED_DEVICE_H_
#define STRATALLOC_TIERING_ENGINE_TIERED_DEVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "tiering/engine/engine_counters.h"
#include "tiering/engine/told.h"
#include "tiering/gpu/checksum.h"

namespace stratalloc {

struct TieredDevice {
  // One step of an eviction or restore at a time. A thread that holds another
  // device's only tries this one, or takes those of all in their order.
  mutable Mutex arbiter{LockRank::kArbiter};
  DeviceAllocator* allocator = nullptr;
  std::string why_not;  // it takes no part; empty: it does
  StreamId copy_out = kDefaultStream;
  StreamId copy_in = kDefaultStream;
  std::optional<DeviceChecksum> checksum;
  // Pinned words that `copy_out` copies its results to, in sets: one for each
  // batch on its way, of two results for each handle. Of no other device: where
  // waiting for that stream fails a copy may still come.
  static constexpr std::size_t kWordSets = 4;
  std::uint64_t* checksum_words = nullptr;
  std::uint64_t* WordsOf(std::size_t set) const {
    return checksum_words + set * 2 * DeviceChecksum::kMost;
  }

  std::string refusal;  // why the last reclaim stopped
  // What people know of it.
  Told refused;    // somebody's bytes have no place below
  Told stopped;    // the device failed an eviction
  Told unsettled;  // ... and does not synchronise any more

  EngineCounters counters;
  // Bytes that came free, ever, and no search for room waited for them: they
  // may be what a thread lacked that was refused before.
  std::atomic<Bytes> freed_unsearched{0};

  // Thresholds count from here on.
  std::atomic<bool> under_pressure{false};
  // How often a request or an operator could not be served.
  std::atomic<std::uint64_t> pressed{0};
  // Of the arbiter's holder: so many of these and bytes that left there were
  // when nothing of the kind had happened, and since when.
  std::uint64_t calm_events = 0;
  std::int64_t calm_since = 0;
  std::atomic<bool> relief_asked{false};
  // Nothing is cold for good before the clock is there.
  std::atomic<std::uint32_t> relief_from{0};

  // Nothing leaves now, because `why`. A failure of the driver is logged once
  // for each error code: of a broken device every call fails in turn.
  void NoteStopped(const Error& why);
  // Makes streams, words and the kernel for `device`. REQUIRES: once.
  Status Prepare(DeviceAllocator& device);
  // It takes no part, because `why`.
  void Refuse(const Error& why);
  // An error for a device that takes no part.
  Status CheckTakesPart() const;
  // Thresholds count from here on.
  void NotePressure();
  // ... and do not any more, unless `pressed` is not `seen` any more.
  void EndPressure(std::uint64_t seen);
  // Waits until nothing is copied on `stream` any more, by whatever call the
  // driver still answers. A driver that answers none has lost the device.
  void Settle(StreamId stream);
  // Gives back what Prepare made. Nothing may be copied any more.
  void Close();

 private:
  Status MakeWords();
};

// Devices in the order in which they came. Read without a lock while one thread
// adds one.
class DeviceList {
 public:
  void Add(TieredDevice* device) {
    const int count = count_.load(std::memory_order_relaxed);
    devices_[count] = device;
    // release: readers look at devices below the count.
    count_.store(count + 1, std::memory_order_release);
  }
  TieredDevice* const* begin() const { return devices_.data(); }
  TieredDevice* const* end() const {
    return begin() + count_.load(std::memory_order_acquire);
  }
  bool empty() const { return begin() == end(); }

 private:
  std::array<TieredDevice*, kMaxDevices> devices_{};
  std::atomic<int> count_{0};
};

// The owners of what lives over the handle, by name, for messages.
std::string OwnersOf(DeviceAllocator& device, HandleRef handle);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_TIERED_DEVICE_H_
