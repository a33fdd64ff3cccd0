// SPDX-License-Identifier: Apache-2.0
// Who may try next, when several threads wait for room on the device.
//
// A thread that needs room takes a Turn with its ticket and asks Await. The
// oldest tries first; who was refused tries again when something changed: a
// pin was dropped, an operator left, memory was freed. While the older ones
// are refused the younger may try, because they may be what has to get on
// before anything changes. So the oldest ticket always gets on as soon as
// that is possible at all, and nobody waits for somebody who waits.
//
// Between tries a thread pins nothing (OperatorThread::Suspend), so whoever
// tries has all of the device but what running operators pin and what never
// leaves. Somebody is told that it is hopeless (Await is false) only when all
// who wait were refused since the last change and nothing has changed for a
// while: the youngest, which has done the least. The others go on waiting.
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
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>

#include "allocator/base/mutex.h"

namespace stratalloc {

class Admission {
 public:
  // The rest of the process, as one who waits sees it.
  struct World {
    bool others = false;   // other threads have run operators
    bool running = false;  // one is inside an operator, and pins what it uses
    // Moves on when another thread enters or leaves an operator and when
    // memory is freed; not by what those do who wait.
    std::uint64_t progress = 0;
  };
  struct Options {
    std::function<World()> look;
    std::function<std::int64_t()> now_ns;
    // How long nothing changes before somebody is told that it is hopeless.
    // Threads between two operators may be about to free their tensors.
    std::int64_t quiet_ns = 100'000'000;
    // The same while an operator has not returned: it may itself wait for
    // another process, or for the thread that waits here.
    std::int64_t running_ns = 10'000'000'000;
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
    // Joins the queue.
    Turn(Admission& admission, std::uint64_t ticket);
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
    void Refused();

   private:
    friend class Admission;
    Admission& admission_;
    const std::uint64_t ticket_;
    // By change_: when its last try began, and the last that was refused; 0:
    // never. What changed during a try may be what it lacked.
    std::uint64_t tried_at_ = 0, refused_at_ = 0;
  };

 private:
  World LookLocked() REQUIRES(mutex_);
  void ChangeLocked() REQUIRES(mutex_);
  bool MayTryLocked(Turn& turn) REQUIRES(mutex_);
  // Every turn was refused since the last change, and this is the youngest.
  bool IsHopelessLocked(const Turn& turn, const World& world) REQUIRES(mutex_);
  void CountRefusedLocked() REQUIRES(mutex_);

  const Options options_;
  std::atomic<std::uint64_t> tickets_{0};
  std::atomic<bool> crowded_{false};
  Mutex mutex_{LockRank::kAdmission};
  std::condition_variable_any changed_;
  std::map<std::uint64_t, Turn*> turns_ GUARDED_BY(mutex_);  // oldest first
  std::uint64_t change_ GUARDED_BY(mutex_) = 1;
  std::int64_t changed_ns_ GUARDED_BY(mutex_) = 0;
  std::uint64_t progress_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ADMISSION_H_
