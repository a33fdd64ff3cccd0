// SPDX-License-Identifier: Apache-2.0
// One batch of handles on its way out. The order of steps is design rule 1:
// chosen, fenced (leave_queue.h), marked, checked or copied, unmapped.
//
//   Begin: marks them, and enqueues sums and copies on copy_out; never waits
//          for a stream of the program
//   End:   waits for that work, compares, and unmaps what can leave
//
// Nothing waits for operators of other threads here. What an operator uses it
// pins, its results included, until it returns; what it noted of a handle (its
// stream) is there before the pin goes; so a handle that was not used since it
// was chosen has nothing about to be launched on it, and its fence covers what
// was. Waiting until every thread had left its operator, as the first version
// did, stood still while one of them waited for the device in `.item()`.
//
// Who may call: the holder of the device's arbiter, without a device lock.
// Between Begin and End the arbiter may be another's. Lifetime: of one batch;
// End is owed. Fails: handle by handle where a tier has no place, all together
// where the device fails. What does not leave is where it was, and the device's
// `refusal` says why; what people should know they are told (told.h).
#ifndef STRATALLOC_TIERING_ENGINE_EVICTION_H_
#define STRATALLOC_TIERING_ENGINE_EVICTION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/events/move_events.h"
#include "tiering/engine/leave_queue.h"
#include "tiering/engine/lower_copies.h"
#include "tiering/engine/tiered_device.h"

namespace stratalloc {

class Eviction {
 public:
  struct Parts {
    TieredDevice& state;
    LowerCopies& lower;
    const DeviceList& all;  // the first one's stream, for a planted bug
  };
  static constexpr std::size_t kMost = DeviceChecksum::kMost;
  static constexpr char kTablesBusy[] =
      "torch's tables of cuBLAS workspaces are being changed, so nobody can "
      "tell what may leave";

  // `words`: of the device's checksum words, 2 * kMost of them, this one's.
  Eviction(const Parts& parts, std::uint64_t* words)
      : state_(parts.state),
        lower_(parts.lower),
        counters_(parts.state.counters),
        all_(parts.all),
        words_(words),
        events_(parts.state.allocator->device().index(),
                parts.state.allocator->moves()) {}
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  // Those of `leaves` that may leave still; false if there are none, and then
  // no End is owed. REQUIRES: once; at most kMost, all for one tier, and their
  // fences are done.
  bool Begin(const std::vector<Leave>& leaves);
  // Behind what Begin enqueued; nullptr: not all of that was.
  const std::shared_ptr<const Fence>& done() const { return done_; }
  bool IsDone() const;
  // The bytes that came free.
  Bytes End();
  bool Has(HandleRef handle) const;

 private:
  // Sums of everything, and copies of what has no true copy below.
  Status Enqueue();
  Status EnqueueCopies();
  // The device's checksums of `handles`, behind whatever copy_out has to do.
  Status Sum(std::span<Departure* const> handles, std::uint64_t* words);
  Status SumNow(Departure& leaving, std::uint64_t* sum);
  StreamId CopyOut() const;
  // The work is done: what its sums say.
  Status Check();
  Status CheckCopies();
  // For what Begin could not copy: it waits. They fail with the device alone:
  // what a tier refuses stays.
  Status CopyNow(Departure& leaving);
  Status CopyToDisk(Departure& leaving, LowerCopy& copy);
  // A place for it on the host; none, and it stays or goes to disk.
  bool TakeHost(Departure& leaving, LowerCopy& copy, bool* to_disk);
  // It stays, and `why` is what the reclaim is told.
  void Refuse(Departure& leaving, const Error& why);
  void Fail(const Error& why);
  // Something wrote to the handle while it was copied out.
  Error Changed(HandleRef handle) const;
  // What can leave leaves, the rest stays. The bytes that came free.
  Bytes Commit();

  Error NoTier(HandleRef handle) const;
  TierRule RuleOf(HandleRef handle) const;

  TieredDevice& state_;
  LowerCopies& lower_;
  EngineCounters& counters_;
  const DeviceList& all_;
  std::uint64_t* const words_;
  const MoveEvents events_;
  Below below_ = Below::kEither;
  std::vector<Departure> batch_;
  std::vector<Departure*> copied_;  // to the host, by Begin
  std::vector<Departure*> late_;    // End copies them
  std::map<Address, std::shared_ptr<LeaveTally>> tallies_;
  Status enqueued_;
  std::shared_ptr<const Fence> done_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_EVICTION_H_
