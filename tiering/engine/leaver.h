// SPDX-License-Identifier: Apache-2.0
// The way out of one device: handles that were chosen and wait for the streams
// that used them, and up to four batches that are summed and copied. A thread
// that wants room chooses, takes steps, and waits between them without a lock:
//
//   Choose -> { Step -> Await } until enough has left
//
// Thread-safety: Choose, Await, Pending and idle from any thread, without a
// device lock and, since they may wait, without the arbiter. Step, Finish,
// freed and IsLeaving by the arbiter's holder.
// Lifetime: the device's. Errors: see Eviction; `refusal` of the device has
// why something stayed.
// Invariants: a batch waits for copy_out, never for a stream of the program.
#ifndef STRATALLOC_TIERING_ENGINE_LEAVER_H_
#define STRATALLOC_TIERING_ENGINE_LEAVER_H_

#include <array>
#include <deque>
#include <memory>
#include <set>
#include <span>

#include "allocator/base/mutex.h"
#include "tiering/engine/eviction.h"
#include "tiering/engine/leave_queue.h"

namespace stratalloc {

class Leaver {
 public:
  explicit Leaver(const Eviction::Parts& parts)
      : parts_(parts), queue_(*parts.state.allocator, parts.all) {}

  // See LeaveQueue::Choose.
  Bytes Choose(std::span<const HandleRef> handles, Below below,
               std::shared_ptr<LeaveTally> tally, Status* why) {
    return queue_.Choose(handles, below, std::move(tally), why);
  }
  // Ends the batches that are complete and begins others.
  void Step();
  // Ends every batch, which waits for copy_out alone.
  void Finish();
  // Bytes that ever came free.
  Bytes freed() const { return freed_; }
  // Waits for the streams of anything that was chosen, however long that takes.
  Status AwaitSome() { return queue_.AwaitSome(); }
  // Until a Step can do something; false after `most_ns`, by the real clock.
  bool Await(std::int64_t most_ns) EXCLUDES(mutex_);
  // Of what is chosen and on its way.
  Bytes Pending() { return queue_.bytes(); }
  bool idle() { return Pending() == 0; }
  std::set<std::uint64_t> Streams() { return queue_.Streams(); }
  bool IsLeaving(HandleRef handle) const;
  // What was chosen stays, and batches end. At the end of tiering.
  void Stop();

 private:
  // Batches at a time: one is copied while the next is summed and the one
  // before unmapped.
  static constexpr std::size_t kBatches = TieredDevice::kWordSets;
  void EndFirst();
  void BeginReady();

  const Eviction::Parts parts_;
  LeaveQueue queue_;
  struct Batch {
    std::unique_ptr<Eviction> eviction;
    std::size_t words;  // which of the device's sets
    Bytes bytes;
  };
  std::deque<Batch> batches_;  // the arbiter's holder's
  std::array<bool, kBatches> words_used_{};
  Bytes freed_ = 0;
  // Of the first batch, for threads that wait without the arbiter.
  Mutex mutex_{LockRank::kLeaves};
  std::shared_ptr<const Fence> first_done_ GUARDED_BY(mutex_);
  bool some_on_their_way_ GUARDED_BY(mutex_) = false;
  void Publish() EXCLUDES(mutex_);
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_LEAVER_H_
