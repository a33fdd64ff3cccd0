// SPDX-License-Identifier: Apache-2.0
// Worker: what has to do with more devices than one. Operators on two of them,
// and bytes that move, by name or all, on devices that this thread does not
// work on; the device that is current is its own, or none of these.
#include <utility>

#include "tests/system/stress/worker.h"

namespace stratalloc {
namespace {

CUstream ToDriver(StreamId stream) {
  return reinterpret_cast<CUstream>(Raw(stream));
}

}  // namespace

void Worker::UseDevice(std::size_t place) {
  // The runtime's call, which the product does not make: no plan is for it.
  cudaSetDevice(static_cast<int>(place));
}

void Worker::Order(std::size_t place, StreamId earlier, StreamId later) {
  if (earlier != later) Order(place, earlier, place, later);
}

void Worker::Order(std::size_t place, StreamId earlier, std::size_t other,
                   StreamId later) {
  UseDevice(place);  // the default stream is the current device's
  cuEventRecord(events_[place], ToDriver(earlier));
  UseDevice(other);
  cuStreamWaitEvent(ToDriver(later), events_[place], 0);
}

void Worker::StepElsewhere() {
  if (world_.places.size() == 1) return StepRare();
  const std::size_t other = 1 - place_;
  Place& there = world_.places[other];
  ++tally_.elsewhere;
  const std::uint64_t dice = Below(100);
  if (dice < 40 && !there.shared.empty()) {
    Shadow& block = *there.shared[Below(there.shared.size())];
    std::lock_guard lock(block.mutex);
    Copy(block);
  } else if (dice < 55) {
    if (Result<Bytes> moved = engine().Evict(*there.device, {}); !moved) {
      Judge("evict elsewhere", moved.error());
    }
  } else if (dice < 65) {
    JudgeRestore(engine().Restore(*there.device, {}));
  } else if (dice < 75) {
    if (Result<Bytes> moved = engine().EvictAll(); !moved) {
      Judge("evict of all", moved.error());
    }
  } else if (dice < 80) {
    JudgeRestore(engine().RestoreAll());
  } else if (dice < 85) {
    if (Status s = there.device->EmptyCache(); !s) {
      Judge("empty_cache elsewhere", s.error());
    }
  } else {
    if (Status s = device().EnablePeer(there.device->device().index()); !s) {
      Judge("a peer", s.error());
    }
  }
}

// As a copy between devices: it enters on each, on a stream of each, and these
// wait for one another before and after.
void Worker::Copy(Shadow& there) {
  if (blocks_.empty()) return;
  Shadow& mine = *blocks_[Below(blocks_.size())];
  Place& other = PlaceOf(there);
  const StreamId streams[2] = {SomeStream(),
                               other.streams[Below(other.streams.size())]};
  Shadow* const blocks[2] = {&mine, &there};
  const bool to_here = Chance(50);
  const bool written[2] = {to_here, !to_here};
  const std::size_t first = Below(2);
  std::size_t entered = 0;
  ++tally_.copies;
  for (std::size_t i : {first, 1 - first}) {
    const Access access{blocks[i]->address, blocks[i]->bytes, written[i]};
    ++tally_.operators;
    if (Status status =
            engine().EnterOperator(streams[i], "copy", {&access, 1});
        !status) {
      Place& place = PlaceOf(*blocks[i]);
      Nest nest;
      nest.Add(*place.device, {&access, 1});
      ++tally_.refused_operators;
      NoteRefusal("a copy between devices", place, status.error(),
                  nest.bytes());
      break;
    }
    ++entered;
  }
  if (entered == 2) {
    for (std::size_t i : {first, 1 - first}) {
      Launch(streams[i], {blocks[i]}, {written[i]});
      Order(blocks[i]->place, streams[i], blocks[1 - i]->place, streams[1 - i]);
    }
  }
  for (; entered > 0; --entered) LeaveOperator();
}

}  // namespace stratalloc
