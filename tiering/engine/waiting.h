// SPDX-License-Identifier: Apache-2.0
// One thread's wait for room on the device, from the first look to the end of
// the call: its turn among the others, and its pins. While it waits it pins
// nothing, so that what its operators use may leave; when it gets on, or gives
// up, all of that is back.
//
//   Await -> Resume -> (arbiter) try -> done
//     ^                   |
//     +----- Refused <----+        Await is false: Stop
//
// Thread-safety: the thread's own. Every method without a lock.
// Lifetime: inside one EnterOperator or Reclaim.
#ifndef STRATALLOC_TIERING_ENGINE_WAITING_H_
#define STRATALLOC_TIERING_ENGINE_WAITING_H_

#include <utility>

#include "allocator/base/clock.h"
#include "allocator/blocks/operator_thread.h"
#include "tiering/engine/engine.h"

namespace stratalloc {

class Engine::Waiting {
 public:
  // `wanting`: the devices that lack room, as bits by ordinal. `fresh`: an
  // outermost operator, which has not begun.
  Waiting(Engine& engine, std::uint64_t wanting, bool fresh = false)
      : engine_(engine),
        thread_(OperatorThread::ThisThread()),
        turn_(engine.admission_, engine.TicketOf(thread_),
              wanting | engine.PinnedOn(thread_), fresh) {
    thread_.wanting = wanting;
    Admission::Turn::mine = &turn_;
    // Operators say when they leave, from now on.
    engine_.attentive_.store(true, std::memory_order_relaxed);
  }
  ~Waiting() {
    Admission::Turn::mine = nullptr;
    thread_.wanting = 0;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // May this thread try now? Its pins stay.
  bool MayTry() { return turn_.MayTry(); }
  // Until this thread may try. False: nobody gets on, and it is to give up.
  bool Await() {
    if (turn_.MayTry()) return true;
    Suspend();
    return turn_.Await();
  }
  // Begins a try. kOutOfMemory: what its operators use is not back; the try is
  // over.
  Status Resume() {
    if (!std::exchange(suspended_, false)) return {};  // nothing has left
    thread_.Resume();
    Status resumed = engine_.Resume(thread_);
    // The caller may go on after an error, with another operator: what is noted
    // belongs to this wait.
    if (resumed || resumed.error().code != ErrorCode::kOutOfMemory) {
      thread_.NoteAgain();
    }
    return resumed;
  }
  // The try came to nothing.
  void Refused(Admission::Lack lack = Admission::Lack::kPins) {
    Suspend();
    turn_.Refused(lack);
  }
  // After Await was false: waits until what the thread's operators use is back.
  // It was there together before; but if others took its room for good, by
  // memory that never leaves, the operators cannot go on: kOusted, because a
  // kernel may answer kOutOfMemory by going on another way.
  Status Stop() {
    const std::int64_t since = engine_.options_.now_ns();
    while (true) {
      Status resumed = Resume();
      if (resumed || resumed.error().code != ErrorCode::kOutOfMemory) {
        return resumed;
      }
      Refused();
      if (engine_.options_.now_ns() - since > engine_.admission_.running_ns()) {
        break;
      }
      turn_.AwaitChange();
    }
    thread_.Resume();
    thread_.NoteAgain();
    suspended_ = false;
    return Fail(ErrorCode::kOusted,
                "CUDA out of memory. An operator waited for memory, and "
                "meanwhile other threads took the room of what it uses, which "
                "cannot be brought back beside it; let fewer threads run at "
                "once");
  }

 private:
  void Suspend() {
    if (std::exchange(suspended_, true)) return;
    const bool pinned = thread_.HoldsPins();
    thread_.Suspend();
    // Once: while a later try pins, no other thread tries on these devices.
    if (pinned && !std::exchange(announced_, true)) {
      engine_.admission_.NoteChange();
    }
  }

  Engine& engine_;
  OperatorThread& thread_;
  Admission::Turn turn_;
  bool suspended_ = false, announced_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_WAITING_H_
