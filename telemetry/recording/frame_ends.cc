// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/frame_ends.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "allocator/base/ids.h"

namespace stratalloc {
namespace {

EventKind KindOf(const PlacedEvent& placed) {
  return static_cast<EventKind>(placed.event.kind);
}

FileEvent AllocationOf(const TemporaryBlock& block) {
  FileEvent event;
  event.address = block.address;
  event.bytes = block.requested;
  event.aux = block.size;
  event.scope = block.scope;
  event.device = block.device;
  return event;
}

// The blocks that are temporary until their frame ends.
class Temporaries {
 public:
  explicit Temporaries(const std::vector<TemporaryBlock>& start) {
    for (const TemporaryBlock& block : start) {
      by_account_[block.account].push_back(Add(AllocationOf(block)));
    }
  }

  void Take(const PlacedEvent& placed, std::vector<PlacedEvent>& into) {
    switch (KindOf(placed)) {
      case EventKind::kAlloc:
        live_.erase(placed.event.address);  // an end that was lost
        if (placed.frame != 0) {
          by_frame_[placed.frame].push_back(Add(placed.event));
        }
        break;
      case EventKind::kFreeRequested:
      case EventKind::kFreeCompleted:
      case EventKind::kRelabel:
        live_.erase(placed.event.address);
        break;
      case EventKind::kFrameEnd:
        End(by_account_, static_cast<std::uint32_t>(placed.event.address),
            placed, into);
        End(by_frame_, placed.frame, placed, into);
        return;
      default:
        break;
    }
    into.push_back(placed);
  }

 private:
  // An address, and which of the blocks that began there.
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct Live {
    FileEvent allocation;
    std::uint64_t number;
  };
  using Frames = std::unordered_map<std::uint32_t, std::vector<Key>>;

  Key Add(const FileEvent& allocation) {
    live_[allocation.address] = {allocation, ++numbers_};
    return {allocation.address, numbers_};
  }

  void End(Frames& frames, std::uint32_t frame, const PlacedEvent& end,
           std::vector<PlacedEvent>& into) {
    const auto found = frames.find(frame);
    if (found == frames.end()) return;
    for (const auto& [address, number] : found->second) {
      const auto block = live_.find(address);
      if (block == live_.end() || block->second.number != number) continue;
      PlacedEvent relabel{block->second.allocation, end.order, 0};
      relabel.event.time = end.event.time;
      relabel.event.thread = end.event.thread;
      relabel.event.kind = static_cast<std::uint8_t>(EventKind::kRelabel);
      relabel.event.category = Raw(Category::kActivation);
      into.push_back(relabel);
      live_.erase(block);
    }
    frames.erase(found);
  }

  std::uint64_t numbers_ = 0;
  std::unordered_map<std::uint64_t, Live> live_;
  Frames by_account_, by_frame_;
};

}  // namespace

std::vector<PlacedEvent> WithFrameEnds(
    const std::vector<PlacedEvent>& events,
    const std::vector<TemporaryBlock>& start) {
  std::vector<PlacedEvent> all;
  all.reserve(events.size());
  Temporaries temporaries(start);
  for (const PlacedEvent& placed : events) temporaries.Take(placed, all);
  return all;
}

}  // namespace stratalloc
