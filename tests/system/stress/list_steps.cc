// SPDX-License-Identifier: Apache-2.0
// Worker: list operators over most of its blocks, far more than the device
// holds, in slices as the bridge takes them
// (python_shim/torch_bridge/guard/list_slices.cc).
#include <algorithm>
#include <numeric>
#include <utility>

#include "accounting/scope_stack.h"
#include "tests/system/stress/worker.h"
#include "tiering/engine/list_room.h"

namespace stratalloc {

// Element i is blocks[i * lists] and the lists - 1 that follow.
struct Worker::List {
  StreamId stream = kDefaultStream;
  std::size_t lists = 1;
  std::vector<Shadow*> blocks;
  std::vector<bool> written;     // by list
  std::vector<Access> accesses;  // of all elements
  std::vector<int> ends;         // of each in `accesses`
  std::vector<Bytes> results;    // that each allocates
  std::vector<std::unique_ptr<Shadow>> made;
};

void Worker::StepList() {
  List list;
  list.stream = SomeStream();
  list.lists = 1 + Below(3);
  std::shuffle(blocks_.begin(), blocks_.end(), random_);
  const std::size_t elements = blocks_.size() / list.lists;
  if (elements == 0) return;
  const bool returns = Chance(50);
  for (std::size_t i = 0; i < list.lists; ++i) {
    list.written.push_back(Chance(40));
  }
  for (std::size_t i = 0; i < elements; ++i) {
    for (std::size_t n = 0; n < list.lists; ++n) {
      Shadow* block = blocks_[i * list.lists + n].get();
      list.blocks.push_back(block);
      list.accesses.push_back({block->address, block->bytes, list.written[n]});
    }
    list.ends.push_back(static_cast<int>(list.accesses.size()));
    list.results.push_back(
        returns ? std::min<Bytes>(list.blocks[i * list.lists]->bytes, 2 * kMiB)
                : 0);
  }
  ++tally_.lists;
  DeviceAllocator& device = this->device();
  const Bytes results =
      std::accumulate(list.results.begin(), list.results.end(), Bytes{0});
  std::size_t most = elements;
  if (NothingAway(device, results) ||
      FitsAsItIs(device, list.accesses, results)) {
    RunSlice(list, 0, elements);
  } else {
    for (std::size_t first = 0; first < elements;) {
      const std::size_t wanted = std::min(
          most,
          NextSlice(device, {list.accesses, list.ends, list.results}, first));
      if (wanted == 0 || first + wanted > elements) {
        world_.Complain("a slice of no element, or of too many");
        break;
      }
      const std::size_t count = RunSlice(list, first, wanted);
      if (count == 0) break;
      if (count < wanted) most = count;
      first += count;
    }
  }
  for (auto& block : list.made) {
    if (block->transient || blocks_.size() >= kMostBlocks ||
        LiveBytes() >= here().live) {
      Free(std::move(block));
    } else {
      blocks_.push_back(std::move(block));
    }
  }
}

// Runs so many elements or fewer; how many, 0 if not even one was let in or a
// result was refused.
std::size_t Worker::RunSlice(List& list, std::size_t first, std::size_t count) {
  DeviceAllocator& device = this->device();
  for (;; count = (count + 1) / 2, ++tally_.halved) {
    const std::span<const Access> accesses(
        list.accesses.data() + first * list.lists, count * list.lists);
    Nest nest;
    nest.Add(device, accesses);
    ++tally_.operators;
    if (Status status = engine().EnterOperator(list.stream, "list", accesses);
        !status) {
      ++tally_.refused_operators;
      NoteRefusal("a list operator", here(), status.error(), nest.bytes());
      if (count > 1 && status.error().code == ErrorCode::kOutOfMemory) {
        continue;
      }
      ++tally_.refused_lists;
      return 0;
    }
    ++tally_.slices;
    bool served = true;
    for (std::size_t i = first; i < first + count && served; ++i) {
      const auto begin =
          list.blocks.begin() + static_cast<std::ptrdiff_t>(i * list.lists);
      std::vector<Shadow*> blocks(
          begin, begin + static_cast<std::ptrdiff_t>(list.lists));
      std::vector<bool> written = list.written;
      if (list.results[i] > 0) {
        nest.AddBlock(list.results[i]);
        const LifetimeClass lifetime = CurrentScope().lifetime;
        auto result =
            Acquire(list.results[i], list.stream, lifetime, nest.bytes());
        served = result != nullptr;
        if (!served) break;
        result->transient = !IsEvictable(lifetime);
        blocks.push_back(result.get());
        written.push_back(true);
        list.made.push_back(std::move(result));
      }
      Launch(list.stream, blocks, written);
    }
    LeaveOperator();
    if (served) return count;
    ++tally_.refused_lists;
    return 0;
  }
}

}  // namespace stratalloc
