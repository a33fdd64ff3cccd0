// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COLLECTIVES_UNDER_WAY_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COLLECTIVES_UNDER_WAY_H_

#include <c10/util/intrusive_ptr.h>
#include <torch/custom_class.h>

#include <atomic>
#include <list>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/values/block_pin.h"
#include "python_shim/torch_bridge/collectives/collective_operator.h"

namespace stratalloc {

// The pins of one collective's operands.
using CollectivePins = std::vector<BlockPin>;

// Collectives that have returned and may still run: kernels on NCCL's streams,
// copies by gloo's threads. Their operands stay on the device until their
// c10d::Work says that it is complete.
//
// Works are held weakly, because whoever holds one holds its tensors. A Work
// that died before it was seen complete tells nothing: its operands may leave
// again, behind everything the device has to do. So it is
// with a Work that raises when it is asked. Even so the last of a dead Work,
// its tensors with it, goes only when we let go of it (Bury): at the next
// collective, the next allocation and the next question for statistics, so that
// nobody who allocates or counts sees it later than under PyTorch's allocator.
//
// Between the two ends of a coalescing manager a process group launches
// nothing; what its operators say of completion is not believed, and their
// operands wait for the Work of the end.
//
// The core asks (Poll) whenever it chooses victims, from the first collective
// on, and while a thread waits for room. Only virtual functions of Work are
// called, so that this library loads into a torch without distributed.
//
// Thread-safety: any thread. No Work is asked or destroyed under the lock, and
// none is destroyed by Poll (though its owner lets go of it at that moment),
// which runs under the core's arbiter: that may take the GIL, whose holder may
// wait for the arbiter. Lifetime: the process's.
class CollectivesUnderWay {
 public:
  static CollectivesUnderWay& Get();
  // Takes the pins over until `work` is complete.
  void Add(CollectivePins pins, const Holder& work) EXCLUDES(mutex_);
  // Nothing to wait for: the pins go at once.
  static void Unpin(const CollectivePins& pins, bool unobserved);

  // Takes the pins over if the group coalesces now; they are left if not.
  bool AddToBatch(const Holder& group, CollectivePins& pins) EXCLUDES(mutex_);
  // An end without a beginning is ignored. `work` may be null: without one the
  // operands may leave behind everything the device has to do.
  void BeginCoalescing(const Holder& group) EXCLUDES(mutex_);
  void EndCoalescing(const Holder& group, const Holder& work) EXCLUDES(mutex_);

  // Lets go of what is over. PollOldest stops at the first that is not, so that
  // the list stays short at the price of one question per collective.
  void Poll() EXCLUDES(mutex_);
  void PollOldest() EXCLUDES(mutex_);
  // Destroys what is left of Works that are over or dead; was there any? Hold
  // no lock. One load where no Work is held.
  static bool Bury() {
    return holding_.load(std::memory_order_acquire) && Get().BuryHeld();
  }
  // From now on Bury is one of torch's FreeMemoryCallbacks. Not when the
  // library is loaded: a bridge that is refused then leaves torch as it was.
  static void BuryBeforeMemoryIsTaken();

 private:
  using WeakHolder = c10::weak_intrusive_ptr<torch::CustomClassHolder>;
  struct Entry {
    WeakHolder holder;  // the Work, or the group that coalesces
    CollectivePins pins;
    // The Work, once it was asked: ours may be the last reference by then, and
    // only Bury lets go of it.
    Holder asked;
  };
  using Entries = std::list<Entry>;

  CollectivesUnderWay() = default;

  // Is it over? Then its pins are gone.
  static bool Finish(Entry& entry);
  // Moves the dead to over_; their pins are gone.
  void CollectDead() EXCLUDES(mutex_);
  bool BuryHeld() EXCLUDES(mutex_);
  // Of what was asked and is still under way.
  void LetGoOfAsked() EXCLUDES(mutex_);
  // After every change of a list.
  void NoteHolding() REQUIRES(mutex_);

  // Of the one object: is any list not empty, and the list of what ends by
  // itself? The end of a coalescing manager is for the program to reach.
  static std::atomic<bool> holding_, under_way_;

  Mutex mutex_{LockRank::kPins};
  Entries entries_ GUARDED_BY(mutex_);  // in the order of their calls
  Entries batches_ GUARDED_BY(mutex_);  // of groups that coalesce
  Entries over_ GUARDED_BY(mutex_);     // without pins, to be destroyed
  int asking_ GUARDED_BY(mutex_) = 0;   // threads that have taken entries out
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COLLECTIVES_UNDER_WAY_H_
