// SPDX-License-Identifier: Apache-2.0
// Blocks that the program freed and whose memory is still in use: by streams
// that were recorded on them, behind one event each; or by a capture, during
// which no event can be recorded that is not part of the graph, so that these
// are *put off* until none is under way.
//
// Whoever calls releases the blocks that come out. A stream for which no event
// is to be had, or that is gone while its work may still run, proves nothing:
// then only a synchronised device does.
//
// Thread-safety: the caller holds the device lock, but for Await. Lifetime: the
// device's. Invariant: `pending_events` of a block = its entries here.
#ifndef STRATALLOC_ALLOCATOR_STREAMS_DEFERRED_FREES_H_
#define STRATALLOC_ALLOCATOR_STREAMS_DEFERRED_FREES_H_

#include <deque>
#include <map>
#include <vector>

#include "allocator/cuda/device.h"
#include "allocator/heap/block.h"
#include "allocator/streams/event_pool.h"

namespace stratalloc {

class DeferredFrees {
 public:
  struct Waiting {
    StreamId stream;
    EventId event;
    Block* block;
  };
  // What is waited for without the lock.
  struct Wait {
    std::vector<EventId> events;    // the last of each stream
    std::vector<Waiting> unproven;  // without an event, taken out
    bool proven = false;            // the devices of those are synchronised
    Status status;                  // of what was waited for
  };

  DeferredFrees(const Device& device, EventPool& events)
      : device_(device), events_(events) {}

  // One event per recorded stream of the block, which has none left then.
  void Record(Block* block);
  // Does a block wait for events?
  bool pending() const;
  // Blocks whose last event is done.
  std::vector<Block*> Collect();

  // ---- while a stream captures -------------------------------------------

  void PutOff(Block* block) { put_off_.push_back(block); }
  bool some_put_off() const { return !put_off_.empty(); }
  // `stream` was recorded on the block while it captured.
  void NoteCaptured(Block* block, StreamId stream) {
    captured_[block].push_back(stream);
  }
  // No stream captures any more: records what was put off. The blocks that wait
  // for nothing.
  std::vector<Block*> Redeem();
  // The block's memory is given back.
  void Forget(Block* block) {
    if (!captured_.empty()) captured_.erase(block);
  }

  // ---- waiting for all of it -------------------------------------------

  Wait BeginWait();
  static void Await(const Device& device, Wait* wait);  // without the lock
  // The blocks that waited for what was proven; others wait on.
  std::vector<Block*> EndWait(const Wait& wait);

 private:
  const Device& device_;
  EventPool& events_;
  std::map<StreamId, std::deque<Waiting>> waiting_;
  std::vector<Block*> put_off_;
  std::map<Block*, std::vector<StreamId>> captured_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STREAMS_DEFERRED_FREES_H_
