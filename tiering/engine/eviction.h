// SPDX-License-Identifier: Apache-2.0
// One batch of handles on its way out. The order of steps is design rule 1:
// mark, fence, check or copy, wait for the copy, unmap.
//
// Nobody waits for operators of other threads here. What an operator uses it
// pins, its results included, until it returns; what it noted of a handle (its
// stream) is there before the pin goes; so a handle without a pin has nothing
// about to be launched on it, and its fence covers what was. Waiting until
// every thread had left its operator, as the first version did, stood still
// while one of them waited for the device in `.item()`, or for us.
//
// Who may call: the arbiter's holder, without a device lock. Lifetime: of one
// Run; captures are kept off other devices until it goes.
// Fails: handle by handle where a tier has no place, all together where the
// device fails. What does not leave is where it was, and the device's `refusal`
// says why; what people should know they are told (told.h).
#ifndef STRATALLOC_TIERING_ENGINE_EVICTION_H_
#define STRATALLOC_TIERING_ENGINE_EVICTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/events/move_events.h"
#include "tiering/engine/engine_counters.h"
#include "tiering/engine/lower_copies.h"
#include "tiering/engine/tiered_device.h"

namespace stratalloc {

// Where what leaves may go, as far as the rules of its blocks let it
// (allocator/values/tier_rule.h).
enum class Below {
  kEither,
  kHost,  // what finds no room there stays
  kDisk,  // past the host; but a copy there that is true still is let lie
};

class Eviction {
 public:
  struct Parts {
    TieredDevice& state;
    LowerCopies& lower;
    EngineCounters& counters;
    const DeviceList& all;  // whose streams may run graphs
  };
  static constexpr std::size_t kMost = DeviceChecksum::kMost;
  static constexpr char kTablesBusy[] =
      "torch's tables of cuBLAS workspaces are being changed, so nobody can "
      "tell what may leave";

  explicit Eviction(const Parts& parts, Below below = Below::kEither)
      : below_(below),
        state_(parts.state),
        lower_(parts.lower),
        counters_(parts.counters),
        all_(parts.all),
        events_(parts.state.allocator->device().index(),
                parts.state.allocator->moves()) {}
  ~Eviction();
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  // Those of `victims` that may leave; the bytes that came free. REQUIRES:
  // once; at most kMost.
  Bytes Run(const std::vector<HandleRef>& victims);
  // Something was about to leave, whether or not it did.
  bool began() const { return began_; }

 private:
  // No capture begins on other devices until this goes; false if one is there.
  bool HoldOthers();
  bool Hold(DeviceAllocator& other);
  // Waits for the streams of what leaves, and checks or copies its bytes; false
  // if the device failed, and then nothing may leave.
  bool MoveOut(std::uint64_t may_ask);
  // `may_wait_for`: what was asked about captures, as MayAsk had it.
  Status Fence(std::uint64_t streams, std::uint64_t may_wait_for);
  // The device's checksums of `handles`, behind whatever copy_out has to do, in
  // checksum_words.
  Status Sum(std::span<Departure* const> handles);
  Status Check();
  // Both fail with the device alone: what a tier refuses stays.
  Status CopyOut();
  Status CopyToDisk(Departure& leaving, LowerCopy& copy);
  // It stays, and `why` is what the reclaim is told.
  void Refuse(Departure& leaving, const Error& why);
  // Somebody wrote to the handle while it was copied out.
  Error Changed(HandleRef handle) const;
  // What can leave leaves, the rest stays. The bytes that came free.
  Bytes End();

  Error NoTier(HandleRef handle) const;
  TierRule RuleOf(HandleRef handle) const;

  const Below below_;
  TieredDevice& state_;
  LowerCopies& lower_;
  EngineCounters& counters_;
  const DeviceList& all_;
  const MoveEvents events_;
  std::vector<Departure> batch_;
  std::vector<DeviceAllocator*> held_;  // no capture begins there
  bool began_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_EVICTION_H_
