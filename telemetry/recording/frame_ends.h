// SPDX-License-Identifier: Apache-2.0
// Re-labels of blocks that outlive the frame of their scope. The rings say once
// that a frame ended (kFrameEnd); a recording says of each block of the frame
// that it is an activation from then on.
//
// A block's frame is the one that was on top of its thread's stack when it was
// allocated. A thread's events are in its own order, so its scope events say
// which frame that is, also where the first of them are missing: a frame that
// is left without having been entered was open before.
//
// Pure: no lock, no clock. Failure: none. Cost: linear.
#ifndef STRATALLOC_TELEMETRY_RECORDING_FRAME_ENDS_H_
#define STRATALLOC_TELEMETRY_RECORDING_FRAME_ENDS_H_

#include <cstdint>
#include <vector>

#include "allocator/events/event.h"
#include "telemetry/recording/file_event.h"

namespace stratalloc {

// Number of a frame among all frames of a recording; 0: none.
using FrameNumber = std::uint32_t;

// The frames of one thread, whose scope events are given in its order.
class ThreadFrames {
 public:
  // `numbers`: the last one that was given. Outlives this.
  explicit ThreadFrames(FrameNumber& numbers)
      : numbers_(numbers), outermost_(++numbers) {}

  void Take(EventKind kind) {
    if (kind == EventKind::kScopeEnter) {
      entered_.push_back(++numbers_);
    } else if (kind == EventKind::kScopeLeave && !entered_.empty()) {
      entered_.pop_back();
    } else if (kind == EventKind::kScopeLeave) {
      outermost_ = ++numbers_;  // of what was entered before all events
    }
  }
  FrameNumber top() const {
    return entered_.empty() ? outermost_ : entered_.back();
  }

 private:
  FrameNumber& numbers_;
  FrameNumber outermost_;
  std::vector<FrameNumber> entered_;
};

// A block that was temporary when the recording began.
struct TemporaryBlock {
  std::uint8_t device = 0;
  std::uint64_t address = 0, size = 0, requested = 0;
  std::uint32_t scope = 0;
  std::uint32_t account = 0;  // of its frame: the address of the kFrameEnd
};

struct PlacedEvent {
  FileEvent event;
  std::uint64_t order = 0;  // of the device; 0 where it has none
  // Of an allocation in a frame, and of a kFrameEnd.
  FrameNumber frame = 0;
};

// A device's events, which are in their order, with a re-label of each live
// block in place of each kFrameEnd. `start`: of this device.
std::vector<PlacedEvent> WithFrameEnds(
    const std::vector<PlacedEvent>& events,
    const std::vector<TemporaryBlock>& start);

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_FRAME_ENDS_H_
