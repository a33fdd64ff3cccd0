// SPDX-License-Identifier: Apache-2.0
// What one thread is doing inside operators: how deep, which handles it pins,
// its place among those who wait for room, and an epoch by which others see
// that it gets on.
//
// A pin lasts for one operator (design rule 3). It is taken by the op guard
// for arguments and by Malloc for evictable blocks that an operator allocates
// for itself, because no guard saw those as arguments. Pins are all that an
// evictor respects: what a thread inside an operator does not pin may leave
// while it is there.
//
// A *call* holds its operands and what it allocates too, but is no operator: it
// is a function of the program's or of a library's that may launch kernels of
// its own between the operators it calls, each of which is an outermost one.
// Calls nest properly with each other and with operators.
//
// A thread that waits for room suspends its pins: what it uses may leave
// meanwhile, since addresses do not change, and is brought back before the
// wait returns (tiering/engine/admission.h).
//
// Thread-safety: ThisThread() is this thread's own; other threads read only
// `epoch`, `calls` and `suspended`, through LookAtOthers().
#ifndef STRATALLOC_ALLOCATOR_BLOCKS_OPERATOR_THREAD_H_
#define STRATALLOC_ALLOCATOR_BLOCKS_OPERATOR_THREAD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/base/thread_local.h"
#include "allocator/values/handle_use.h"

namespace stratalloc {

struct OperatorThread {
  // Odd while inside an outermost operator.
  std::atomic<std::uint64_t> epoch{0};
  // Odd while inside a call; moves on by an even number for nested ones.
  std::atomic<std::uint64_t> calls{0};
  // Its pins are dropped for a while: it is in nobody's way.
  std::atomic<bool> suspended{false};
  // A malloc made by an observer or callback of the ladder itself must not
  // climb the ladder again (design rule 13).
  bool in_ladder = false;

  // This thread's alone:
  // Its age among those who wait for room, 0 while it has not waited: kept
  // until the outermost operator leaves, so that who waited once is not the
  // youngest the next time.
  std::uint64_t ticket = 0;
  // What it enters now is tried once: it is as well off without (data_ptr()).
  bool hurried = false;
  // Devices it waits for room on, as bits by ordinal.
  std::uint64_t wanting = 0;
  std::vector<HandleUse*> pins;
  std::vector<std::size_t> marks;  // pins.size() at each operator's entry

  // Made by a thread's first call, gone when the thread ends.
  static OperatorThread& ThisThread();
  int depth() const { return static_cast<int>(marks.size()); }

  void Enter();
  // Drops the pins of the innermost operator. Pins of nested operators are
  // dropped when they leave; blocks allocated inside stay pinned until the
  // outermost one leaves (PinForOutermost).
  void Leave();
  void Pin(HandleUse& use) {
    // seq_cst: see "who wins" in handle_table.h.
    use.pins.fetch_add(1, std::memory_order_seq_cst);
    pins.push_back(&use);
  }
  // Leaves the innermost operator, whose pins become those of a call.
  void LeaveIntoCall();
  // Ends the newest call. REQUIRES: there is one.
  void LeaveCall();
  // Is what this thread allocates to stay until it leaves what it is inside of?
  bool KeepsWhatItAllocates() const {
    return !marks.empty() || !held_marks_.empty();
  }
  // Keeps `use` until the outermost operator of this thread leaves, and the
  // outermost call. REQUIRES: KeepsWhatItAllocates().
  void PinForOutermost(HandleUse& use);
  // Takes back the newest `n` pins.
  void DropPins(std::size_t n);

  bool HoldsPins() const {
    return !pins.empty() || !outermost_pins_.empty() || !held_.empty() ||
           !made_.empty();
  }
  // Drops all pins, remembering them and what was noted of their handles.
  void Suspend();
  // Takes them again. Whatever left meanwhile is still away: the caller brings
  // it back, and then calls NoteAgain.
  void Resume();
  // Every pin: f(HandleUse&).
  template <typename F>
  void ForEachPin(F&& f) const {
    for (HandleUse* use : pins) f(*use);
    for (HandleUse* use : outermost_pins_) f(*use);
    for (HandleUse* use : held_) f(*use);
    for (HandleUse* use : made_) f(*use);
  }
  // What the operators had noted before the suspension holds still: their
  // streams use the handles, and those they write are dirty. An eviction in
  // between took it for done.
  void NoteAgain();

 private:
  struct Noted {
    HandleUse* use;
    std::uint64_t used_streams;
    bool dirty;
  };
  static OperatorThread& Register();

  std::vector<HandleUse*> outermost_pins_;
  std::vector<HandleUse*> held_;         // operands of calls
  std::vector<HandleUse*> made_;         // allocated inside calls
  std::vector<std::size_t> held_marks_;  // held_.size() at each call's entry
  std::vector<Noted> noted_;             // while suspended, and until NoteAgain
};

namespace internal {
extern STRATALLOC_FAST_THREAD_LOCAL OperatorThread* operator_thread;
}  // namespace internal

inline OperatorThread& OperatorThread::ThisThread() {
  OperatorThread* const mine = internal::operator_thread;
  return __builtin_expect(mine != nullptr, 1) ? *mine : Register();
}

// What the other threads are doing.
struct OtherThreads {
  bool any = false;  // one has ever entered an operator
  // One is inside an operator or a call and has pins that count.
  bool inside = false;
  // Moves on when any thread enters or leaves an operator or a call; the same
  // for all who ask at the same time.
  std::uint64_t progress = 0;
};
OtherThreads LookAtOthers();

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BLOCKS_OPERATOR_THREAD_H_
