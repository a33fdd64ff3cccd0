// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/fragmentation.h"

#include <algorithm>
#include <map>
#include <utility>

#include "allocator/state/frame_accounts.h"

namespace stratalloc {
namespace {

// Of one handle, while its segment is looked at.
struct InHandle {
  Bytes live = 0;
  int blocks = 0;
  const Block* oldest = nullptr;
};

// What may lie in one handle with what else, if classes were not kept apart.
using Sharers = std::pair<StreamId, PoolKind>;

struct ClassBytes {
  Bytes handle_bytes = 0;
  std::map<LifetimeClass, Bytes> live;
};

bool IsHere(HandleRef handle) {
  const HandleState state = handle.entry().state.load();
  return state != HandleState::kUnmapped && !IsAway(state);
}

class Count {
 public:
  explicit Count(std::uint32_t now) : now_(now) {}

  void Add(const Segment& segment) {
    std::map<Address, InHandle> handles;
    for (const Block* b = segment.first; b != nullptr; b = b->next) {
      if (IsLive(b->state)) AddLive(*b, &handles);
    }
    // A block keeps all of each handle that it touches.
    const PoolKey& key = segment.pool->key();
    ForEachHandleOf(segment, [&](HandleRef handle) {
      if (!IsHere(handle)) return;
      all_.reserved += handle.bytes();
      const auto found = handles.find(handle.address());
      if (found != handles.end()) {
        AddHole(key, handle, found->second);
      } else if (key.owner.is_private()) {
        all_.in_private_pools += handle.bytes();
      } else {
        all_.releasable += handle.bytes();
      }
    });
  }

  Fragmentation Sum() && {
    for (const auto& [sharers, bytes] : classes_) {
      Bytes apart = 0, together = 0;
      for (const auto& [lifetime, live] : bytes.live) {
        apart += RoundUp(live, bytes.handle_bytes);
        together += live;
      }
      all_.separated += apart - RoundUp(together, bytes.handle_bytes);
    }
    std::stable_sort(
        all_.holes.begin(), all_.holes.end(),
        [](const Hole& a, const Hole& b) { return a.free > b.free; });
    return std::move(all_);
  }

 private:
  void AddLive(const Block& block, std::map<Address, InHandle>* handles) {
    const PoolKey& key = block.segment->pool->key();
    Address at = block.address;
    ForEachHandleOf(block, [&](HandleRef handle, Bytes bytes) {
      const Bytes before = std::exchange(at, at + bytes) - block.address;
      if (!IsHere(handle)) return;
      InHandle& in = (*handles)[handle.address()];
      in.live += bytes;
      ++in.blocks;
      if (in.oldest == nullptr || Age(block) > Age(*in.oldest)) {
        in.oldest = &block;
      }
      if (block.state == BlockState::kPending) {
        all_.pending += bytes;
      } else {
        all_.allocated += bytes;
        const Bytes asked =
            block.requested > before ? block.requested - before : 0;
        all_.rounding += bytes - std::min(bytes, asked);
      }
      if (key.owner.is_private() || block.segment->unmanaged) return;
      ClassBytes& shared = classes_[{key.stream, key.kind}];
      shared.handle_bytes = handle.bytes();
      shared.live[key.lifetime] += bytes;
    });
  }

  void AddHole(const PoolKey& key, HandleRef handle, const InHandle& in) {
    const Bytes free = handle.bytes() - in.live;
    if (free == 0) return;
    all_.stranded += free;
    if (key.owner.is_private()) all_.stranded_private += free;
    const Block& oldest = *in.oldest;
    all_.holes.push_back(
        {.pool = key,
         .address = handle.address(),
         .bytes = handle.bytes(),
         .free = free,
         .blocks = in.blocks,
         .oldest = {oldest.address, oldest.size, oldest.requested, oldest.state,
                    FrameAccounts::Get().Resolved(oldest.charge)},
         .age = Age(oldest)});
  }

  // The clock goes round.
  std::uint32_t Age(const Block& block) const { return now_ - block.clock; }

  const std::uint32_t now_;
  Fragmentation all_;
  std::map<Sharers, ClassBytes> classes_;
};

}  // namespace

std::string Fragmentation::ToText() const {
  std::string text;
  const auto add = [&](Bytes bytes, const char* what) {
    if (bytes == 0) return;
    if (!text.empty()) text += ", ";
    text += FormatBytes(bytes) + " " + what;
  };
  add(stranded - stranded_private, "free beside them in their handles");
  add(stranded_private, "free beside blocks of private pools");
  add(pending, "freed while other streams use it");
  add(in_private_pools, "free in private pools");
  add(releasable, "cached");
  return text;
}

Fragmentation FragmentationOf(const BlockHeap& heap, std::uint32_t now) {
  Count count(now);
  for (const auto& [base, segment] : heap.segments()) count.Add(*segment);
  return std::move(count).Sum();
}

}  // namespace stratalloc
