// SPDX-License-Identifier: Apache-2.0
// The handles of one device that were chosen to leave and wait for the streams
// that used them. Until then they are resident and may be used: a use makes
// the choice void (Residency::Choose).
//
//   Choose -> a fence for each -> TakeReady, once it is done -> Eviction
//
// Thread-safety: every method, from any thread. Locks: its own, under which
// nothing is called; Choose takes the device lock before.
// Lifetime: the device's. Errors: what cannot be fenced is not chosen, and
// `why` says why not.
// Invariants: a handle is here once, by its latest choice.
#ifndef STRATALLOC_TIERING_ENGINE_LEAVE_QUEUE_H_
#define STRATALLOC_TIERING_ENGINE_LEAVE_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "tiering/engine/fence.h"
#include "tiering/engine/tiered_device.h"

namespace stratalloc {

// Where what leaves may go, as far as the rules of its blocks let it
// (allocator/values/tier_rule.h).
enum class Below {
  kEither,
  kHost,  // what finds no room there stays
  kDisk,  // past the host; but a copy there that is true still is let lie
};

// What became of one choice: its handles are under way as long as others have
// it, too.
struct LeaveTally {
  std::atomic<Bytes> left{0};
  // The search for room that made the choice goes on.
  std::atomic<bool> searched{false};
};

struct Leave {
  Claim claim;
  Below below = Below::kEither;
  std::shared_ptr<LeaveTally> tally;
  std::shared_ptr<const Fence> fence;
};

class LeaveQueue {
 public:
  LeaveQueue(DeviceAllocator& device, const DeviceList& all)
      : device_(device), all_(all) {}

  // Chooses those of `handles` that may leave; their bytes. Waits where a
  // stream cannot be asked by an event. `why`: why none was chosen.
  Bytes Choose(std::span<const HandleRef> handles, Below below,
               std::shared_ptr<LeaveTally> tally, Status* why) EXCLUDES(mutex_);
  // Those, in the order in which they were chosen, whose streams are done; all
  // for one `below`. A stream that stands still keeps its own handles alone.
  // What cannot be asked is not chosen any more, and `failed` says why. What is
  // taken counts in bytes() until the caller reports its end by Ended.
  std::vector<Leave> TakeReady(std::size_t most, Status* failed)
      EXCLUDES(mutex_);
  void Ended(Bytes bytes) EXCLUDES(mutex_);
  bool SomeReady() EXCLUDES(mutex_);
  // Waits for the streams of any; after a second, however long, for those of
  // the first.
  Status AwaitSome() EXCLUDES(mutex_);
  bool empty() EXCLUDES(mutex_);
  // Of what is chosen, and of what was taken and has not ended. Never 0 in
  // between.
  Bytes bytes() EXCLUDES(mutex_);
  // The streams of each choice that waits. A handle that all streams of one of
  // them used, too, is ready no sooner: its events come behind theirs.
  std::set<std::uint64_t> Streams() EXCLUDES(mutex_);
  void Clear() EXCLUDES(mutex_);

 private:
  // No capture begins on any device while this lives.
  class HeldCaptures;
  void Push(std::vector<Leave> leaves) EXCLUDES(mutex_);
  std::vector<std::shared_ptr<const Fence>> Fences() EXCLUDES(mutex_);

  DeviceAllocator& device_;
  const DeviceList& all_;
  Mutex mutex_{LockRank::kLeaves};
  std::deque<Leave> leaves_ GUARDED_BY(mutex_);
  Bytes in_hand_ GUARDED_BY(mutex_) = 0;  // taken, and not ended
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_LEAVE_QUEUE_H_
