// SPDX-License-Identifier: Apache-2.0
#include "allocator/streams/deferred_frees.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "allocator/base/planted.h"

namespace stratalloc {

void DeferredFrees::Record(Block* block) {
  for (const StreamId stream : block->streams) {
    EventId event = events_.Take(stream);
    if (event != kNoEvent && !device_.RecordEvent(event, stream)) {
      events_.Put(event, stream);
      event = kNoEvent;
    }
    ++block->pending_events;
    waiting_[stream].push_back({stream, event, block});
  }
  block->streams.clear();
  block->streams_noted = false;
}

bool DeferredFrees::pending() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const auto& of) { return !of.second.empty(); });
}

std::vector<Block*> DeferredFrees::Collect() {
  std::vector<Block*> done;
  for (auto& [stream, queue] : waiting_) {
    while (!queue.empty() && queue.front().event != kNoEvent) {
      if (STRATALLOC_PLANTED(kLateEvent) && queue.size() < 2) break;
      const Waiting& first = queue.front();
      const Result<bool> is_done = device_.IsEventDone(first.event);
      // An event that cannot be queried (a capture in progress) is not done.
      if (!is_done || !*is_done) break;
      events_.Put(first.event, stream);
      if (--first.block->pending_events == 0) done.push_back(first.block);
      queue.pop_front();
    }
  }
  return done;
}

std::vector<Block*> DeferredFrees::Redeem() {
  std::vector<Block*> done;
  for (Block* block : std::exchange(put_off_, {})) {
    // What a capture recorded runs when the graph is replayed, and the graph
    // keeps the memory: only uses outside of it are still to be waited for.
    const auto captured = captured_.find(block);
    if (captured != captured_.end()) {
      std::erase_if(block->streams, [&](StreamId stream) {
        return std::find(captured->second.begin(), captured->second.end(),
                         stream) != captured->second.end();
      });
      captured_.erase(captured);
    }
    Record(block);
    if (block->pending_events == 0) done.push_back(block);
  }
  return done;
}

DeferredFrees::Wait DeferredFrees::BeginWait() {
  Wait wait;
  for (auto& [stream, queue] : waiting_) {
    std::erase_if(queue, [&](const Waiting& one) {
      if (one.event == kNoEvent) wait.unproven.push_back(one);
      return one.event == kNoEvent;
    });
    if (!queue.empty()) wait.events.push_back(queue.back().event);
  }
  return wait;
}

void DeferredFrees::Await(const Device& device, Wait* wait) {
  for (const EventId event : wait->events) {
    if (Status s = device.SynchronizeEvent(event); !s) wait->status = s;
  }
  wait->proven = true;
  std::optional<StreamId> waited;  // those of one stream follow each other
  for (const Waiting& one : wait->unproven) {
    if (std::exchange(waited, one.stream) == one.stream) continue;
    if (Status s = device.SynchronizeDevice(one.stream); !s) {
      wait->status = s;
      wait->proven = false;
    }
  }
}

std::vector<Block*> DeferredFrees::EndWait(const Wait& wait) {
  std::vector<Block*> done;
  for (const Waiting& one : wait.unproven) {
    if (!wait.proven) {
      waiting_[one.stream].push_back(one);
    } else if (--one.block->pending_events == 0) {
      done.push_back(one.block);
    }
  }
  return done;
}

}  // namespace stratalloc
