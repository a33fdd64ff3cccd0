// SPDX-License-Identifier: Apache-2.0
// The order in which threads that wait for room on a device try.
//
// A thread that needs room takes a Turn with its ticket and asks Await. Turns
// that have no device in common do not concern each other. Of the others the
// oldest tries first; who was refused tries again when something changed: a
// pin was dropped, an operator left, memory was freed. While the older ones
// are refused the younger may try, because they may be what has to get on
// before anything changes. But when the oldest was passed over kPassedOver
// times, operators that have yet to begin wait until those under way have left
// it a moment in which nobody runs, as long as these do get on.
//
// Between tries a thread pins nothing (OperatorThread::Suspend), so whoever
// tries has all of the device but what running operators pin and what never
// leaves. Somebody is told that it is hopeless (Await is false)
//   - when all who wait were refused since the last change and nothing has
//     changed for a while: the youngest, which has done the least;
//   - when it lacks memory that no eviction can free (kMemory), and for a while
//     nobody has freed any: the youngest of those;
//   - in any case so long after its first refusal, whatever others do. Of that
//     time only what passed since the device was busy counts, up to a limit.
//
// The clock, the rest of the process and the device come in as functions, so
// that all of this is tested without them.
//
// Thread-safety: every method; one Turn belongs to one thread. Waits without
// any other lock: call with none held (LockRank::kAdmission).
// Lifetime: outlives its turns.
#ifndef STRATALLOC_TIERING_ENGINE_ADMISSION_H_
#define STRATALLOC_TIERING_ENGINE_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>

#include "allocator/base/condition.h"
#include "allocator/base/mutex.h"

namespace stratalloc {

class Admission {
 public:
  // The rest of the process, as one who waits sees it.
  struct World {
    bool others = false;   // other threads have run operators
    bool running = false;  // one is inside an operator, and pins what it uses
    // What ends by itself pins what it uses, or keeps everything: a capture.
    bool under_way = false;
    // Kernels still run on what was chosen to leave the devices that the thread
    // lacks room on: they end by themselves, if no stream waits for what
    // another thread has yet to do.
    bool device_busy = false;
    // Moves on when another thread enters or leaves an operator, when memory is
    // freed, when a pin is taken back, when a capture ends and when pages leave
    // that no try waits for; not by what threads do that wait.
    std::uint64_t progress = 0;
    std::uint64_t freed = 0;  // of these, memory that was freed
  };
  // What a try lacked.
  enum class Lack {
    kPins,    // others use what would have to leave
    kMemory,  // more than is left though everything that may leave had left
  };
  struct Options {
    std::function<World()> look;
    // Called by those who wait, now and then, without a lock: it may change
    // what `look` sees.
    std::function<void()> poll = [] {};
    std::function<std::int64_t()> now_ns;
    // How long nothing changes before somebody is told that it is hopeless.
    // Threads between two operators may be about to free their tensors.
    std::int64_t quiet_ns = 100'000'000;
    // The same while an operator has not returned: it may itself wait for
    // another process, or for the thread that waits here.
    std::int64_t running_ns = 10'000'000'000;
    // The same while kernels keep what could leave: some run for long.
    std::int64_t busy_ns = 60'000'000'000;
    // How long one that lacks memory waits while others do free some.
    std::int64_t memory_ns = 3'000'000'000;
  };
  explicit Admission(Options options) : options_(std::move(options)) {}

  // Smaller is older.
  std::uint64_t NewTicket() { return 1 + tickets_.fetch_add(1); }

  // Somebody was refused and waits: who begins something new queues behind
  // it, or its pins would come and go for ever. One load.
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }

  std::int64_t running_ns() const { return options_.running_ns; }

  // Something that a refused thread lacked may be there now.
  void NoteChange() EXCLUDES(mutex_);

  class Turn {
   public:
    static constexpr std::uint64_t kAllDevices = ~std::uint64_t{0};
    // Joins the queue. `fresh`: an operator that has not begun, so that others
    // do not need it to get on.
    // `devices`: on which it lacks room or pins something, as bits by ordinal.
    Turn(Admission& admission, std::uint64_t ticket,
         std::uint64_t devices = kAllDevices, bool fresh = false);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // May this thread try now? Does not wait.
    bool MayTry();
    // Waits until it may. False: nobody gets on, and this one is to give up.
    bool Await();
    // Waits for a change, or a millisecond.
    void AwaitChange();
    // The try came to nothing; the thread has suspended its pins again.
    void Refused(Lack lack = Lack::kPins);
    // In the middle of its try this thread waits for streams, which may take
    // any time: after a while the younger may try. And that is over.
    void BeginWait();
    void EndWait();
    // Of the calling thread; nullptr if it does not wait for room.
    static thread_local Turn* mine;

   private:
    friend class Admission;
    static constexpr std::int64_t kNotWaiting = -1;
    bool Concerns(const Turn& other) const {
      return (devices_ & other.devices_) != 0;
    }
    Admission& admission_;
    const std::uint64_t ticket_;
    const std::uint64_t devices_;
    const bool fresh_;
    bool trying_ = false;
    Lack lack_ = Lack::kPins;
    int refusals_ = 0;
    std::int64_t waits_since_ = kNotWaiting;
    std::int64_t refused_ns_ = 0;  // first
    std::int64_t began_ns_ = 0;    // its try
    std::int64_t tried_ns_ = 0;    // in tries since its first refusal
    // By change_: when its last try began, and the last that was refused; 0:
    // never. What changed during a try may be what it lacked.
    std::uint64_t tried_at_ = 0, refused_at_ = 0;
    // At its last look its devices were busy or another thread tried on them;
    // and until when.
    bool busy_ = false;
    std::int64_t busy_since_ns_ = 0;
    std::int64_t busy_ns_ = 0;  // for long, in all
    std::int64_t busy_until_ns_ = std::numeric_limits<std::int64_t>::min() / 2;
  };

 private:
  World LookLocked(Turn& turn) REQUIRES(mutex_);
  void ChangeLocked() REQUIRES(mutex_);
  bool MayTryLocked(Turn& turn) REQUIRES(mutex_);
  // Another thread tries on its devices, and for long: it waits for a disk or a
  // stream, and may free what this one lacks.
  bool AnotherTriesLocked(const Turn& turn) const REQUIRES(mutex_);
  // Does its try wait for streams that stand still?
  bool StandsStillLocked(const Turn& turn) const REQUIRES(mutex_);
  // Is somebody older refused again and again while the operators under way
  // get on?
  bool WaitsForOldestLocked(const Turn& turn) const REQUIRES(mutex_);
  bool IsHopelessLocked(const Turn& turn, const World& world) REQUIRES(mutex_);
  void CountRefusedLocked() REQUIRES(mutex_);

  const Options options_;
  std::atomic<std::uint64_t> tickets_{0};
  std::atomic<bool> crowded_{false};
  Mutex mutex_{LockRank::kAdmission};
  Condition changed_;
  std::map<std::uint64_t, Turn*> turns_ GUARDED_BY(mutex_);  // oldest first
  std::uint64_t change_ GUARDED_BY(mutex_) = 1;
  std::int64_t changed_ns_ GUARDED_BY(mutex_) = 0;
  std::uint64_t progress_ GUARDED_BY(mutex_) = 0, freed_ GUARDED_BY(mutex_) = 0;
  std::int64_t freed_ns_ GUARDED_BY(mutex_) = 0;  // somebody freed memory
  bool running_ GUARDED_BY(mutex_) = false;       // at the last look
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ADMISSION_H_
