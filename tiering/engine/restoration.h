// SPDX-License-Identifier: Apache-2.0
// Handles on their way back, to the same address: one restore, in as many parts
// as there is room for. All physical memory of a part is taken first (all or
// nothing, rule 4); only then do copies start, and from there on nothing is
// evicted or given up, so no buffer moves under a copy.
//
//   TakeRoom -> MoveIn, run by run -> Commit -> GoesOn ?
//
// Who may call: the holder of the device's arbiter, without a device lock.
// Lifetime: of one Run. Fails: kOutOfMemory where there is no room for all, and
// a part may have come; kCorrupt where bytes are lost, whose handle is poisoned
// then; else as the driver and the disk do. What has not come is where it was.
#ifndef STRATALLOC_TIERING_ENGINE_RESTORATION_H_
#define STRATALLOC_TIERING_ENGINE_RESTORATION_H_

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "tiering/engine/lower_copies.h"
#include "tiering/engine/tiered_device.h"

namespace stratalloc {

class Restoration {
 public:
  struct Parts {
    TieredDevice& state;
    LowerCopies& lower;
    // Evicts for it: how many bytes came free of so many. It ends once the
    // streams of what leaves stand still, and sets the flag, if that is not set
    // yet. None: what is free must do.
    std::function<Bytes(Bytes, bool*)> make_room;
    bool planned = false;  // counted so
    // Are handles on their way out, whose memory comes free soon?
    std::function<bool()> some_leave = [] { return false; };
  };

  explicit Restoration(Parts parts)
      : state_(parts.state),
        lower_(parts.lower),
        counters_(parts.state.counters),
        make_room_(std::move(parts.make_room)),
        planned_(parts.planned),
        some_leave_(std::move(parts.some_leave)) {}

  // Brings those of `handles` back that are away.
  Status Run(std::span<const HandleRef> handles);

 private:
  // Memory for all that is missing, or for as much as there is room for.
  void TakeRoom();
  // Others were brought back during a wait for room; bytes that lack memory.
  Bytes ForgetWhatCame();
  Status CheckNotLost(std::span<const HandleRef> wanted) const;
  void MoveIn();
  // [first, end) of what is missing is mapped: copies it.
  void MoveRunIn(std::size_t first, std::size_t end);
  // DeviceAllocator::BeginRestore, once the driver has memory for the page
  // tables.
  Result<std::size_t> Begin(std::span<const HandleRef> handles,
                            std::span<PhysicalMemory* const> memory);
  Status CopyIn(HandleRef handle);
  void Abort(HandleRef handle, bool lost);
  // What arrived is told.
  void Commit();
  // Is another part worth trying?
  bool GoesOn();

  TieredDevice& state_;
  LowerCopies& lower_;
  EngineCounters& counters_;
  const std::function<Bytes(Bytes, bool*)> make_room_;
  const bool planned_;
  const std::function<bool()> some_leave_;

  int attempts_ = 0;
  bool stood_still_ = false;
  // Of one part:
  std::vector<HandleRef> missing_;  // by address
  // One for each, as far as there was room; nullptr once it is mapped.
  std::vector<PhysicalMemory*> taken_;
  std::vector<HandleRef> arrived_;
  Status status_;
  bool in_parts_ = false;  // there was no room for all
  bool no_page_tables_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_RESTORATION_H_
